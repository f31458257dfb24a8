"""Schedules chosen by measurement: what can be measured, with which binary, and what measurements have decided."""
