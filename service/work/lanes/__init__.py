"""Lanes: what is queued, sorted by who may take it. A lane is a set of runs that exactly the same devices may take.

A device looks at the head of each lane that it fits, so its cost does not grow with what waits for others
(decision 59).
"""
