"""The oracle: a schedule of starts and stops made with the whole trace in view."""
