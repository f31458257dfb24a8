"""What the tests of the dashboard share: a seeded farm, and Chromium."""
