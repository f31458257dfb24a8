"""Optional features of a farm: each is a folder with one record (`Feature`), listed in `service/feature_list.py`."""
