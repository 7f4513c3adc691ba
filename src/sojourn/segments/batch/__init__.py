"""Many captures, or files of epochs, at once: mapped over an executor, and put together."""
