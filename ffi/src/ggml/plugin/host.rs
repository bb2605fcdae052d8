//! Which ggml this process runs, and whether we know it.

use super::{canary, uses};
use crate::ggml::api::{Api, ApiError};

/// The releases that the whole test suite runs on: version and `GGML_BACKEND_API_VERSION`.
pub const TESTED_HOSTS: [(&str, i32); 2] = [("0.25.3", 2), ("0.26.0", 3)];

/// Why this ggml cannot host us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A function is missing.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A table or struct of the host is not laid out as any version that we know.
    #[error("host ggml {version} (backend API {api_version}) has another layout: {what}")]
    Layout {
        /// ggml's version.
        version: String,
        /// The backend API that the host seems to have.
        api_version: i32,
        /// What differs.
        what: String,
    },
    /// An untested version, and only tested ones are wanted.
    #[error(
        "host ggml {version} (backend API {api_version}) is untested and only tested versions are accepted"
    )]
    Untested {
        /// ggml's version.
        version: String,
        /// The backend API that the host seems to have.
        api_version: i32,
    },
}

/// Proof that the ggml of this process lays out its tables and tensors as we do.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    api: &'static Api,
    api_version: i32,
}

impl Host {
    /// Looks up ggml's functions and proves the layouts by calling a probe backend through them. A version that was
    /// never tested but passes gives one warning, or with `strict` an error.
    ///
    /// # Errors
    /// What is missing or different, with the version found.
    pub fn probe(strict: bool) -> Result<Self, HostError> {
        let api = Api::get()?;
        let api_version = api.host_api_version();
        let version = api.version().to_string_lossy().into_owned();
        let tested = TESTED_HOSTS.contains(&(version.as_str(), api_version));
        if strict && !tested {
            return Err(HostError::Untested {
                version,
                api_version,
            });
        }
        canary::check(api, api_version).map_err(|what| HostError::Layout {
            version: version.clone(),
            api_version,
            what: what.to_string(),
        })?;
        if !tested {
            log::warn!(
                "host ggml {version} (backend API {api_version}) is untested; its layouts are as expected"
            );
        }
        Ok(Self { api, api_version })
    }

    /// Returns the table of functions.
    #[must_use]
    pub fn api(&self) -> &'static Api {
        self.api
    }

    /// Tells whether this ggml tells how often results are read over whole graphs, parts of which it hands us.
    #[must_use]
    pub fn counts_uses(&self) -> bool {
        uses::is_known(self.api)
    }

    /// Returns `GGML_BACKEND_API_VERSION` of the host.
    #[must_use]
    pub fn api_version(&self) -> i32 {
        self.api_version
    }
}
