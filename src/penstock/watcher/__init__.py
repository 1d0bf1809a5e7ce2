"""The watcher: records how long each step of a training waits and works, without changing what the training does."""
