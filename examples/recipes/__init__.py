"""Fine-tuning models of other frameworks: a recipe each, and the families of models that it is shown on."""
