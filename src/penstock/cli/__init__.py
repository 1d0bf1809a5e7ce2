"""The command line of `penstock`.

`main` puts the commands together. Each command is a module with a function of the same name: it parses the options,
runs the command and prints the result with the report module of that name. `arguments` has the options that several
commands share, and `console` their output.
"""
