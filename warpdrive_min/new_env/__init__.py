"""The starter of a new environment: `command.new_env` fills the files of `template/`."""
