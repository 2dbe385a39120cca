"""Other systems' autoscaling laws as baselines, one a file, written from what they publish."""
