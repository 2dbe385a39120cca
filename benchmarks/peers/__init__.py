"""Other systems' scaling policies as baselines, written from what their authors publish."""
