"""Independent NumPy reference of LLaDA and Dream inside GGUF files, and makers of test files.

Nothing here shares code with the Rust crates: it is the second opinion they are compared with. `README.md` says what is
where and how the command line (`python -m reference.cli`) is called.
"""
