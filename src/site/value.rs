//! Typed values.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Perennial,
    call::{Call, Run, stored},
};
use crate::{
    error::{BoxError, Error},
    policy::Refresh,
};

const JSON: &str = "application/json";
const CBOR: &str = "application/cbor";

/// The output of a generator of [values](Perennial::value): the value, or a `Result` with it.
pub trait IntoValue<T> {
    /// Returns the value.
    ///
    /// # Errors
    ///
    /// The generator's error.
    fn into_value(self) -> Result<T, BoxError>;
}

impl<T> IntoValue<T> for T {
    fn into_value(self) -> Result<T, BoxError> {
        Ok(self)
    }
}

impl<T, E: Into<BoxError>> IntoValue<T> for Result<T, E> {
    fn into_value(self) -> Result<T, BoxError> {
        self.map_err(Into::into)
    }
}

/// A closure whose future generates a [value](Perennial::value). Each closure that returns such a
/// future implements the trait.
pub trait GenerateValue<T>: Send {
    /// Starts the generator.
    fn generate(self) -> impl Future<Output = Result<T, BoxError>> + Send + 'static;
}

impl<T, F, Fut> GenerateValue<T> for F
where
    F: FnOnce() -> Fut + Send,
    Fut: Future<Output: IntoValue<T>> + Send + 'static,
{
    fn generate(self) -> impl Future<Output = Result<T, BoxError>> + Send + 'static {
        let generated = self();
        async move { generated.await.into_value() }
    }
}

impl Perennial {
    /// Returns a generated value of a Rust type, and generates the value if necessary. The result
    /// is a future.
    ///
    /// As with [`content`](Self::content), the value is stored, regenerated and served by the
    /// policy, under a key that does not begin with `/`. The database stores JSON, or
    /// [CBOR](crate::Builder::cbor_values). Memory keeps the decoded value, so that a hit decodes
    /// and copies nothing.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use std::sync::Arc;
    /// use perennial::{DAY, Refresh};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct TopTen {
    ///     titles: Vec<String>,
    /// }
    ///
    /// const DAILY: Refresh = Refresh::every(DAY);
    /// let top_ten: Arc<TopTen> = site
    ///     .value("top-10", DAILY, || async { TopTen { titles: vec!["Middlemarch".into()] } })
    ///     .await?;
    /// println!("{}", top_ten.titles[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// Name the type by the variable, as above, or by `site.value::<TopTen>(…)`.
    ///
    /// # When the type changes
    ///
    /// A stored value that cannot be decoded, as the type has changed, counts as missing: one
    /// warning is logged for each regeneration, and the value is generated anew. While processes
    /// with the old and the new type run side by side, each process keeps the value that it has in
    /// memory until the end of the interval. A change that decodes all the same and means something
    /// else needs another [schema](ValueCall::schema).
    ///
    /// # Errors
    ///
    /// The errors of [`content`](Self::content). The value cannot be encoded, or its own text cannot
    /// be decoded again: an [error of the generator](Error::is_generator).
    ///
    /// # Panics
    ///
    /// Panics if `generate` itself panics.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels nothing: a regeneration that has begun continues.
    pub fn value<'a, T>(
        &'a self,
        key: &'a str,
        policy: impl Into<Refresh>,
        generate: impl GenerateValue<T> + 'a,
    ) -> ValueCall<'a, T, impl FnOnce() -> Run + Send>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let policy = policy.into();
        let settings = &self.engine.settings;
        let max_body = settings.max_body;
        let kind = if settings.cbor_values { CBOR } else { JSON };
        let generate = move || {
            let generated = generate.generate();
            Run(Box::pin(async move {
                let encoded = generated.await.and_then(|value| encode(&value, kind));
                let encoded = encoded.and_then(|it| decode::<T>(&it).map(|_| it));
                stored(encoded, max_body)
            }))
        };
        let mut call = Call::new(&self.engine, key, policy, generate);
        call.readable = Some(|page| page.decoded(decode::<T>).is_ok());
        let value = PhantomData;
        ValueCall { call, value }
    }
}

/// A call of [`Perennial::value`]: a future with the value.
#[must_use = "futures do nothing unless awaited"]
pub struct ValueCall<'a, T, G> {
    call: Call<'a, G>,
    value: PhantomData<fn() -> T>,
}

impl<T, G> ValueCall<'_, T, G> {
    /// Sets the version of the type's meaning. Default: 0.
    ///
    /// Values of different schemas stand side by side, as variants of the key: the key of schema 2
    /// of `top-10` is `top-10#schema=2`. So a process with the old type and a process with the new
    /// type do not overwrite each other's value, and [`invalidate`](Perennial::invalidate) and
    /// [`purge`](Perennial::purge) apply to both.
    pub fn schema(mut self, schema: u32) -> Self {
        if schema != 0 {
            self.call.key = format!("{}#schema={schema}", self.call.key).into();
        }
        self
    }
}

impl<'a, T, G> Future for ValueCall<'a, T, G>
where
    T: DeserializeOwned + Send + Sync + 'static,
    G: FnOnce() -> Run + Send + 'a,
{
    type Output = Result<Arc<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let version = ready!(Pin::new(&mut self.call).poll(context))?;
        let value = version.content.decoded(decode::<T>);
        Poll::Ready(value.map_err(|error| {
            Error::generator(format!(
                "the value cannot be decoded ({error}): perhaps two types share its key"
            ))
        }))
    }
}

impl<T, G> fmt::Debug for ValueCall<'_, T, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueCall").finish_non_exhaustive()
    }
}

fn encode<T: Serialize>(value: &T, kind: &'static str) -> Result<Response<Bytes>, BoxError> {
    let bytes = match kind {
        CBOR => {
            let mut bytes = Vec::new();
            ciborium::into_writer(value, &mut bytes)?;
            bytes
        }
        _ => serde_json::to_vec(value)?,
    };
    let mut response = Response::new(Bytes::from(bytes));
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Decodes a stored value of either kind.
fn decode<T: DeserializeOwned>(stored: &Response<Bytes>) -> Result<T, BoxError> {
    match stored.headers().get(header::CONTENT_TYPE) {
        Some(kind) if kind == CBOR => Ok(ciborium::from_reader(&**stored.body())?),
        _ => Ok(serde_json::from_slice(stored.body())?),
    }
}
