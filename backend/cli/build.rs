//! Lets the executable find the shared ggml and llama libraries: beside itself when installed, else where cargo built
//! them. `DT_RPATH` and not `DT_RUNPATH`, since the libraries find each other by it too.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DEP_LLAMA_ROOT");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux" || os == "android") {
        let mut paths = vec!["$ORIGIN".to_owned()];
        if let Ok(root) = std::env::var("DEP_LLAMA_ROOT") {
            paths.push(relative_to_profile(Path::new(&root)).unwrap_or(root) + "/lib");
        }
        println!("cargo:rustc-link-arg-bins=-Wl,--disable-new-dtags");
        for path in paths {
            println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{path}");
        }
    }
}

/// Returns `target/<profile>/build/<crate>/out` as seen from an executable in `target/<profile>`.
fn relative_to_profile(root: &Path) -> Option<String> {
    let build = root.parent()?.parent()?;
    let tail = root.strip_prefix(build.parent()?).ok()?;
    (build.file_name()? == "build").then(|| format!("$ORIGIN/{}", tail.display()))
}
