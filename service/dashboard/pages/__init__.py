"""The pages, a module for each: from facts to what the template draws."""
