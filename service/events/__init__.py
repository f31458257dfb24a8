"""What happened to jobs and runs, in order, as a stream."""
