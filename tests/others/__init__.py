"""Files that others trained and published, tried as a user would bring them; none of them is part of this project."""
