"""Files and the jobs that make them: uploads, data sets, compile jobs, bundles, kernel tunings."""
