//! Tests of the decoder as a whole; those of single functions are beside them.

mod cached;
mod machine;
mod params;
mod reference;
mod state;
