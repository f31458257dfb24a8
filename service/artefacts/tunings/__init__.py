"""Schedules that measurements on boards chose."""
