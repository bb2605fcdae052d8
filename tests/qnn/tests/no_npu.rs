//! A machine without NPU: Qualcomm's aarch64 library, under an emulator of the CPU, answers cleanly. On x86-64 that library is not.
#![cfg(target_arch = "aarch64")]

use llada_npu_ffi::qnn::{Backend, ErrorCode, Library, Provider};
use llada_npu_qnn_tests::case::{case, directory};

#[test]
fn without_an_npu_the_library_says_so() {
    case("without_an_npu_the_library_says_so", || {
        let path = directory()
            .expect("a case has libraries")
            .join("libQnnHtp.so");
        let library = Library::open(&path, Provider::Htp).unwrap();
        println!(
            "core {}, HTP {}, build {}",
            library.core_version(),
            library.backend_version(),
            library.build_id()
        );
        let error = Backend::new(&library).unwrap_err();
        println!("{error}");
        assert_eq!(error.code(), Some(ErrorCode::BACKEND_CANNOT_INITIALIZE));
        // It may be asked again.
        assert_eq!(Backend::new(&library).unwrap_err(), error);
    });
}
