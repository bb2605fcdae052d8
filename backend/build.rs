//! Link arguments of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux" || os == "android") {
        // Hosts keep pointers into the plug-in until they exit, whatever they unload.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
