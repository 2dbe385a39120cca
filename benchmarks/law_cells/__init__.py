"""Where an autoscaling law could be wrong: a matrix of cells with other fleets, reports or traffic."""
