//! Harness of the host tests: independent oracles and the files they need.
//!
//! * oracles: [`llama`] (stock libllama on the CPU), [`numpy`] (`tests/reference`);
//! * the code under test: [`engine`];
//! * [`host`]: the plug-in, the stock tools, small C hosts;
//! * [`program`], [`terminal`]: the command line as its users see it; [`gguf_edit`]: broken copies of a model;
//! * [`qnn`]: generations through QNN libraries; [`lora`]: with adapters;
//! * [`files`]: models and tasks of the repository, changed copies of models;
//! * [`text`]: comparing generated texts with a reference; [`near_tie`]: with those of the same engine elsewhere.

pub mod engine;
pub mod files;
pub mod gguf_edit;
pub mod host;
pub mod llama;
pub mod lora;
pub mod near_tie;
pub mod numpy;
pub mod program;
pub mod qnn;
pub mod terminal;
pub mod text;
