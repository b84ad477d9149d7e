//! The linkers: which host functions a policy of each world can reach, and nothing else.

use crate::bindings::lease::warmhold::policy::{ledger_view, log, settings, types};
use crate::bindings::replay::warmhold::policy as replay_imports;
use crate::call::{CallState, Host};
use crate::lease::LeaseHost;
use crate::manifest::ManifestHost;
use crate::replay::ReplayCall;
use crate::wasi;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

impl<X> types::Host for Host<X> {}

fn common<X: Send + 'static>(engine: &Engine) -> wasmtime::Result<Linker<Host<X>>> {
    fn call<X>(host: &mut Host<X>) -> &mut CallState {
        &mut host.call
    }
    let mut linker = Linker::new(engine);
    types::add_to_linker::<_, HasSelf<Host<X>>>(&mut linker, |host| host)?;
    settings::add_to_linker::<_, HasSelf<CallState>>(&mut linker, call::<X>)?;
    log::add_to_linker::<_, HasSelf<CallState>>(&mut linker, call::<X>)?;
    wasi::link(&mut linker)?;
    Ok(linker)
}

pub(crate) fn lease(engine: &Engine) -> wasmtime::Result<Linker<Host<LeaseHost>>> {
    let mut linker = common(engine)?;
    ledger_view::add_to_linker::<_, HasSelf<Host<LeaseHost>>>(&mut linker, |host| host)?;
    Ok(linker)
}

pub(crate) fn manifest(engine: &Engine) -> wasmtime::Result<Linker<Host<ManifestHost>>> {
    common(engine)
}

pub(crate) fn replay(engine: &Engine) -> wasmtime::Result<Linker<Host<ReplayCall>>> {
    type Own = HasSelf<Host<ReplayCall>>;
    let mut linker = common(engine)?;
    replay_imports::control::add_to_linker::<_, Own>(&mut linker, |host| host)?;
    replay_imports::cluster::add_to_linker::<_, Own>(&mut linker, |host| host)?;
    replay_imports::transport::add_to_linker::<_, Own>(&mut linker, |host| host)?;
    replay_imports::pod_manifest::add_to_linker::<_, Own>(&mut linker, |host| host)?;
    replay_imports::clock::add_to_linker::<_, Own>(&mut linker, |host| host)?;
    Ok(linker)
}
