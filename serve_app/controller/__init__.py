"""The adapter between the scaling policy and Ray Serve's controller, in which the policy runs."""
