//! Harness of the host tests.
