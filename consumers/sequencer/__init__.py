"""The sequencer role: puts the events of all inputs into one log, with time in it."""
