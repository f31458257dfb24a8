"""Mistakes that people make, each made for real, and what they are told: cause, place and next step."""
