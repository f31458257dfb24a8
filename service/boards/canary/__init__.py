"""The canary: a tiny training run that shows whether a device which strikes have quarantined works again.

The model is fixed, the data are new for each run, and the farm computes the losses itself: nothing that a device has
seen before tells it what to report.
"""
