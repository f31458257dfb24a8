"""Are the numbers and what is said of them right? Everything here has an answer that is known beforehand."""
