//! The table as a C caller uses it, in a process without ggml.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

use super::*;

fn api() -> &'static Api {
    // SAFETY: the table is static.
    unsafe { &*get_api() }
}

fn last() -> (String, c_int) {
    // SAFETY: last_error returns a NUL-terminated string of this thread.
    let text = unsafe { CStr::from_ptr((api().last_error)()) };
    (text.to_str().unwrap().to_owned(), (api().last_status)())
}

#[test]
fn the_table_says_its_size_and_version() {
    assert_eq!((api().size, api().version), (size_of::<Api>(), 1));
}

#[test]
fn there_is_no_error_before_the_first() {
    std::thread::spawn(|| assert_eq!(last(), (String::new(), 0)))
        .join()
        .unwrap();
}

#[test]
fn options_are_described() {
    let n = (api().n_options)();
    assert_eq!(n, crate::decode::OPTIONS.len());
    for (index, expected) in crate::decode::OPTIONS.iter().enumerate() {
        let mut info = MaybeUninit::<OptionInfo>::zeroed();
        // SAFETY: zeroed memory of the struct's size.
        unsafe { (*info.as_mut_ptr()).size = size_of::<OptionInfo>() };
        // SAFETY: a struct of the size that it says.
        assert_eq!(unsafe { (api().option_info)(index, info.as_mut_ptr()) }, 0);
        // SAFETY: all fields are plain and were zeroed or written.
        let info = unsafe { info.assume_init() };
        // SAFETY: static strings, written just above.
        let text = |p| unsafe { CStr::from_ptr(p) }.to_str().unwrap();
        assert_eq!(text(info.key), expected.key);
        assert_eq!(text(info.value_name), expected.value_name);
        assert_eq!(text(info.default_value), expected.default);
        assert_eq!(text(info.help), expected.help);
        assert!(!text(info.help).contains('\n'));
    }
    let mut info = call::option_info(0).unwrap();
    // SAFETY: a struct of the size that it says.
    let code = unsafe { (api().option_info)(n, &raw mut info) };
    assert_eq!(code, Status::Invalid.code());
    assert_eq!(
        last().0,
        format!("`index` is {n}, expected less than n_options()")
    );
}

#[test]
fn no_more_is_written_than_the_caller_has() {
    let mut info = call::option_info(1).unwrap();
    let key = info.key;
    info = OptionInfo {
        size: 16,
        key: ptr::null(),
        value_name: ptr::null(),
        ..info
    };
    // SAFETY: the struct is larger than it says.
    assert_eq!(unsafe { (api().option_info)(1, &raw mut info) }, 0);
    assert_eq!(
        (info.size, info.key, info.value_name),
        (16, key, ptr::null())
    );
    for size in [0, 7] {
        info.size = size;
        // SAFETY: as above.
        let code = unsafe { (api().option_info)(1, &raw mut info) };
        assert_eq!(code, Status::Invalid.code());
        assert!(
            last().0.starts_with("`option_info`: size field is "),
            "{}",
            last().0
        );
    }
}

#[test]
fn no_more_is_read_than_the_caller_has() {
    let old = SessionParams {
        size: 16,
        n_ctx: 5,
        n_threads: 3,
        type_k: 77,
        ..call::DEFAULT_SESSION_PARAMS
    };
    // SAFETY: a struct of at least the size that it says.
    let read = unsafe { read(&raw const old, call::DEFAULT_SESSION_PARAMS) }.unwrap();
    assert_eq!((read.n_ctx, read.n_threads, read.type_k), (5, 3, -1));
    // SAFETY: NULL is allowed.
    let read = unsafe { types::read(ptr::null(), call::DEFAULT_SESSION_PARAMS) }.unwrap();
    assert_eq!((read.n_ctx, read.type_v, read.top_p), (0, -1, 1.0));
}

#[test]
fn null_is_an_error_and_freeing_it_is_not() {
    let null = "is NULL";
    // SAFETY: NULL is nothing to free.
    unsafe {
        (api().model_free)(ptr::null_mut());
    }
    // SAFETY: as above.
    unsafe {
        (api().session_free)(ptr::null_mut());
    }
    let failed = |code: c_int, name: &str| {
        assert_eq!(code, Status::Invalid.code());
        assert_eq!(last(), (format!("`{name}` {null}"), code));
    };
    // SAFETY: NULL is checked for, here and below.
    assert!(unsafe { (api().model_load)(ptr::null(), ptr::null()) }.is_null());
    failed(last().1, "path");
    // SAFETY: see above.
    assert!(unsafe { (api().session_new)(ptr::null_mut(), ptr::null()) }.is_null());
    failed(last().1, "model");
    // SAFETY: see above.
    failed(
        unsafe { (api().model_get_info)(ptr::null_mut(), ptr::null_mut()) },
        "model",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().session_set)(ptr::null_mut(), c"mode".as_ptr(), c"x".as_ptr()) },
        "session",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().session_check)(ptr::null_mut(), 1, 1) },
        "session",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().generate)(ptr::null_mut(), ptr::null(), 0, 1, None, ptr::null_mut()) },
        "session",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().output)(ptr::null_mut(), ptr::null_mut(), 0) },
        "session",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().get_report)(ptr::null_mut(), ptr::null_mut()) },
        "session",
    );
    // SAFETY: see above.
    failed(
        unsafe { (api().get_report_json)(ptr::null_mut(), ptr::null_mut(), 0) },
        "session",
    );
}

#[test]
fn without_ggml_a_model_is_refused_with_one_line() {
    let path = CString::new("/no/such.gguf").unwrap();
    // SAFETY: a NUL-terminated path; NULL parameters are allowed.
    assert!(unsafe { (api().model_load)(path.as_ptr(), ptr::null()) }.is_null());
    let (text, status) = last();
    assert_eq!(status, Status::Failed.code());
    assert!(!text.is_empty() && !text.contains('\n'), "{text}");
}

#[test]
fn a_panic_becomes_a_failure() {
    let code = enter_status("entry", || panic!("broken promise"));
    assert_eq!(code, Status::Failed.code());
    assert_eq!(
        last(),
        ("internal error in `entry`, see the log".to_owned(), code)
    );
}

#[test]
fn long_lines_are_cut_between_characters() {
    let failure = Failure::Number {
        name: "x",
        value: 1,
        expected: Box::leak("ä".repeat(10_000).into_boxed_str()),
    };
    failure::remember(&failure);
    let (text, _status) = last();
    assert!(text.starts_with("`x` is 1, expected ää") && text.ends_with('ä'));
    assert!(
        (6 * 1024 - 1..=6 * 1024).contains(&text.len()),
        "{}",
        text.len()
    );
}
