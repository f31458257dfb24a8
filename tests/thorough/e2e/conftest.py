"""The farm of `tests/e2e`, which these tests share among themselves."""
