"""What the numbers mean: sensors read while steps run, statistics, verdicts, which schedule won."""
