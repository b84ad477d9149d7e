//! Finding the daemon, and not finding it.

use super::server::{Answer, Server};
use super::{QUERY, World, ran};
use serde_json::json;

fn workers() -> Server {
    Server::new(|_| Answer::Json(200, json!([])))
}

/// What a script sees when there is no daemon.
#[track_caller]
fn unreachable(world: &World, message: &str) {
    let ran = world.run(&["worker", "list"]).exits(3);
    assert!(ran.stdout.is_empty());
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with(&format!("error[unreachable]: {message}")), "{}", ran.stderr);
    assert_eq!(lines[1], format!("help: start it with `warmhold serve --root {}`", world.root().display()));
}

#[test]
fn no_daemon_is_exit_3_with_the_way_to_start_one() {
    let world = World::new();
    unreachable(&world, "no daemon serves ");

    let server = workers();
    let world = World::with(&server);
    // A process that has ended: its number was just free.
    let mut child = std::process::Command::new("true").spawn().expect("it runs");
    child.wait().expect("it ends");
    world.control("daemon.json", &json!({"url": server.url(), "pid": child.id(), "version": "0"}));
    unreachable(&world, "the daemon of ");
    assert!(server.asked().is_empty(), "no token goes to whoever has its address now");

    // A port that nobody listens on: bound and never accepted would wait, so bind and drop.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    world.control("daemon.json", &json!({"url": format!("http://{free}"), "pid": std::process::id(), "version": "0"}));
    unreachable(&world, &format!("no daemon answers at http://{free}: "));
    assert_eq!(world.run(&["replays", "list"]).code, 3);
    assert_eq!(world.run(&["policy", "list"]).code, 3);
}

#[test]
fn the_last_daemon_that_started_is_found_by_its_root() {
    let server = workers();
    let world = World::with(&server);
    world.run(&["worker", "list"]).exits(0);
    assert_eq!((server.only().token(), server.only().path.as_str()), (QUERY, "/v1/workers"));

    let other = World::new();
    let root = world.root();
    other.run(&["--root", root.to_str().expect("UTF-8"), "worker", "list"]).exits(0);
    assert_eq!(server.asked().len(), 2);
}

#[test]
fn the_default_root_is_in_the_state_folder() {
    let server = workers();
    let world = World::with(&server);
    let state = world.folder.path().join("state");
    std::fs::create_dir(&state).expect("a folder");
    std::fs::rename(world.root(), state.join("warmhold")).expect("moved");
    ran(world.command().env_remove("WARMHOLD_ROOT").env("XDG_STATE_HOME", &state).args(["worker", "list"])).exits(0);

    let home = world.folder.path().join("home/.local/state");
    std::fs::create_dir_all(&home).expect("folders");
    std::fs::rename(state.join("warmhold"), home.join("warmhold")).expect("moved");
    ran(world.command().env_remove("WARMHOLD_ROOT").args(["worker", "list"])).exits(0);

    let none = ran(world.command().env_remove("WARMHOLD_ROOT").env_remove("HOME").args(["worker", "list"])).exits(2);
    assert!(none.stderr.starts_with("error[no-root]: "), "{}", none.stderr);
}

#[test]
fn an_address_needs_a_token_and_no_root() {
    let server = workers();
    let world = World::new();
    let ran_with = |url: &str, token: Option<&str>| {
        let mut command = world.command();
        command.args(["--url", url, "worker", "list"]);
        if let Some(token) = token {
            command.env("WARMHOLD_TOKEN", token);
        }
        ran(&mut command)
    };
    let token = "d".repeat(64);
    ran_with(&server.url(), Some(&token)).exits(0);
    assert_eq!(server.only().token(), 'd');
    let starts =
        |ran: super::Ran, code: &str| assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "{}", ran.stderr);
    starts(ran_with(&server.url(), None).exits(2), "no-token");
    starts(ran_with(&server.url(), Some("short")).exits(2), "bad-token");
    starts(ran_with(&server.url(), Some(&format!("{token}\r\nx: y"))).exits(2), "bad-token");
    starts(ran_with("https://127.0.0.1:1", Some(&token)).exits(2), "bad-url");
    starts(ran_with("127.0.0.1:1", Some(&token)).exits(2), "bad-url");
    starts(ran_with("http://user@127.0.0.1:1", Some(&token)).exits(2), "bad-url");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_proxy_of_the_environment_is_not_used() {
    let proxy = workers();
    let server = workers();
    let world = World::with(&server);
    let mut command = world.command();
    for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY"] {
        command.env(name, proxy.url());
    }
    ran(command.args(["worker", "list"])).exits(0);
    assert_eq!((server.asked().len(), proxy.asked().len()), (1, 0));
}

#[test]
fn damaged_files_of_a_root_are_named() {
    let server = workers();
    let world = World::with(&server);
    std::fs::write(world.root().join("control/tokens.json"), "{").expect("written");
    let ran = world.run(&["worker", "list"]).exits(2);
    assert!(ran.stderr.starts_with("error[damaged-file]: ") && ran.stderr.contains("tokens.json"), "{}", ran.stderr);
}

#[test]
fn the_daemons_refusal_is_printed_in_its_own_words() {
    for (status, body, code, stderr) in [
        (
            401,
            json!({"error": "unauthorized"}),
            2,
            "error[unauthorized]: the daemon answered 401\nhelp: the token isn't one of this daemon's",
        ),
        (
            403,
            json!({"error": "forbidden", "message": "not with this token"}),
            2,
            "error[forbidden]: not with this token\nhelp: this needs another token",
        ),
        (
            409,
            json!({"error": "not-primary", "message": "m2 is primary", "requestId": "r1", "help": "ask m2"}),
            1,
            "error[not-primary]: m2 is primary (request r1)\nhelp: ask m2\n",
        ),
        (503, json!({"error": "ledger-busy", "message": "\u{1b}[31mno\u{7}"}), 1, "error[ledger-busy]: no\u{fffd}\n"),
    ] {
        let server = Server::new(move |_| Answer::Json(status, body.clone()));
        let ran = World::with(&server).run(&["worker", "list"]).exits(code);
        assert!(ran.stderr.starts_with(stderr), "{}", ran.stderr);
    }
    let server = Server::new(|_| Answer::Raw(200, "<html>"));
    let ran = World::with(&server).run(&["worker", "list"]).exits(3);
    assert!(ran.stderr.starts_with("error[bad-answer]: "), "{}", ran.stderr);
    let server = Server::new(|_| Answer::Raw(502, "<html>"));
    let ran = World::with(&server).run(&["worker", "list"]).exits(1);
    assert!(ran.stderr.starts_with("error[http-502]: the daemon answered 502"), "{}", ran.stderr);
    let server = Server::new(|_| Answer::Json(200, json!({"workers": 1})));
    let ran = World::with(&server).run(&["worker", "list"]).exits(1);
    assert!(ran.stderr.starts_with("error[bad-answer]: "), "{}", ran.stderr);
}
