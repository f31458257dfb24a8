"""Plans: which parameters a rule, a preset or a scheme means in a model."""
