"""The meaning of the numbers: sensors read while steps run, statistics, verdicts, which schedule won."""
