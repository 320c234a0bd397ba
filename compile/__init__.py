"""Compiles the hot path to machine code: `python -m compile`.

modules   the modules that mypyc compiles, and those that C replaces
build     runs the compilers
progress  shows the step that a build is at
hook      puts the compiled modules into a wheel
backend/  the build backend: hatchling, without a second build for pip
wheels    builds the wheels and the sdist
install   installs the command for a user
sbom      writes the bill of materials
training  runs the hot path, so that the compiler can optimise by profile
"""
