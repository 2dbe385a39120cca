"""What the policy learns: from the reports of a model to the plain numbers that a decision is made from."""
