//! What a configuration may say, and what each fault of it is answered with.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

/// Reads a text for the root `/r`, away from any git tree.
fn read(text: &str) -> Result<Config, Vec<Fault>> {
    parse(text, Path::new("/r"), &Overrides { machine: Some("m1".into()), ..Overrides::default() }, None)
}

/// Each fault as `LINE KEY: WHAT | HELP`.
fn faults(text: &str) -> Vec<String> {
    let faults = read(text).expect_err("a fault");
    faults
        .iter()
        .map(|fault| format!("{} {fault} | {}", fault.line.map_or("-".into(), |line| line.to_string()), fault.help))
        .collect()
}

fn fault(text: &str) -> String {
    let found = faults(text);
    assert_eq!(found.len(), 1, "{text}: {found:#?}");
    found[0].clone()
}

#[test]
fn without_a_file_everything_has_a_default() {
    let root = tempfile::tempdir().expect("a folder");
    let config = Config::load(root.path()).expect("the defaults");
    assert_eq!(config.file, None);
    assert_eq!(config.daemon.listen.to_string(), "127.0.0.1:31413");
    assert!(warmhold_control::is_holder(&config.daemon.machine));
    assert_eq!((&config.daemon.primary, config.daemon.require_primary), (&Primary::Own, false));
    assert_eq!(config.daemon.pods.to_string_lossy(), format!("{}-pods", root.path().display()));
    assert_eq!(config.daemon.http.request_timeout, Duration::from_secs(15));
    assert_eq!(config.policy, Policies::default());
    assert_eq!(config.policy.lease.faults_to_roll_back, 3);
    assert_eq!(config.control, None);
    assert!(config.grants.replay.allows("local", "warmhold", "exec"));
    assert!(!config.grants.replay.allows("k3d-x", "warmhold", "exec"));
    assert_eq!((config.grants.lease.verbs.len(), config.grants.manifest.verbs.len()), (0, 0));

    let profile = config.default_profile().expect("one");
    assert_eq!((profile.name.as_str(), &profile.backend), ("local", &Backend::Local));
    assert_eq!(profile.tiers, [Tier { name: "lite".into(), memory: 2 << 30, quota: 2 }]);
    assert_eq!((profile.standing, profile.install.len(), profile.lock_files.len()), (0, 0, 0));
    assert_eq!(profile.transport_limit, Duration::from_secs(120));
    assert_eq!(profile.tests, built_in_rules());
    // Tests of this crate run inside a git work tree, and that is where `serve` would have been started.
    let expected = git_tree(Path::new(".")).map(Source::Path);
    assert_eq!(profile.source, expected);
}

#[test]
fn every_key_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("repo/.git")).expect("a repository");
    fs::write(root.join("lease.wasm"), "").expect("a policy");
    let token = root.join("member");
    fs::write(&token, "a".repeat(64) + "\n").expect("a token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("0600");
    let text = format!(
        r#"
        [daemon]
        listen = "[::1]:0"
        machine = "Build.07"
        primary = "none"
        pods = "/var/pods"
        pod-path = "/opt/bin:/bin"
        worker-binary = "bin/warmhold-worker"
        max-connections = 10
        max-headers = 100
        max-header = "8KiB"
        max-body = "2MiB"
        max-policy = "8MiB"
        max-bodies = "16MiB"
        max-waiting-writes = 20
        min-free-space = "1GiB"
        header-timeout = "2s"
        idle-timeout = "3s"
        answer-timeout = "4s"
        request-timeout = "30s"
        drain-timeout = "5s"
        [policy.lease]
        file = "lease.wasm"
        settings = {{ prefer = "recent", limit = 0x10, ratio = 0.5, deep = {{ list = [1, "two", true] }} }}
        memory = "16MiB"
        deadline = "5ms"
        wall = "1s"
        faults-to-roll-back = 5
        watch = true
        [policy.replay]
        wall = "20m"
        [profile.local]
        source = "repo"
        lock-files = ["package-lock.json"]
        install = ["npm", "ci"]
        tiers.small = {{ memory = "512MiB", quota = 3 }}
        tiers.big = {{ memory = "16Gi" }}
        standing = 4
        host-probe = "http://127.0.0.1:80/up"
        prod-probe = "http://[fd00::1]:80"
        ttl = "5m"
        idle-ttl = "1h"
        transport-limit = "60s"
        env = {{ CI = "1" }}
        [[profile.local.test]]
        match = "tests/*.rb"
        run = ["ruby", "-Ilib", "{{file}}"]
        [profile.cluster]
        backend = "kubectl"
        source = "https://git.example/a.git"
        context = "k3d-a"
        namespace = "warm"
        node = "n1"
        image = "registry.example/tests@sha256:00"
        source-mirror = "/srv/mirror"
        [control]
        url = "http://100.64.0.7:31413/"
        member-token-file = "{token}"
        machine-token-files = {{ m1 = "{token}" }}
        [grants.lease]
        [grants.replay]
        contexts = ["local", "k3d-a"]
        namespaces = ["warmhold", "warm"]
        verbs = ["create-pod", "exec", "get-node", "get-pod", "list-pods", "patch-metadata", "wait-ready"]
        "#,
        token = token.display()
    );
    fs::write(root.join("warmhold.toml"), text).expect("written");
    let config = Config::load(root).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(config.file, Some(root.join("warmhold.toml")));
    let daemon = &config.daemon;
    assert_eq!((daemon.listen.to_string().as_str(), daemon.machine.as_str()), ("[::1]:0", "Build.07"));
    assert_eq!((&daemon.primary, daemon.pods.as_path()), (&Primary::None, Path::new("/var/pods")));
    assert_eq!(daemon.worker_binary, Some(root.join("bin/warmhold-worker")));
    assert_eq!(daemon.pod_path, "/opt/bin:/bin");
    assert_eq!(
        daemon.http,
        HttpLimits {
            max_connections: 10,
            max_headers: 100,
            max_header: 8 << 10,
            max_body: 2 << 20,
            max_policy: 8 << 20,
            max_bodies: 16 << 20,
            max_waiting_writes: 20,
            min_free_space: 1 << 30,
            header_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(3),
            answer_timeout: Duration::from_secs(4),
            request_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5)
        }
    );
    assert_eq!(
        config.policy.lease,
        PolicySlot {
            file: Some(root.join("lease.wasm")),
            settings: serde_json::json!({"prefer": "recent", "limit": 16, "ratio": 0.5, "deep": {"list": [1, "two", true]}}),
            memory: Some(16 << 20),
            deadline: Some(Duration::from_millis(5)),
            wall: Some(Duration::from_secs(1)),
            faults_to_roll_back: 5,
            watch: true,
        }
    );
    assert_eq!(config.policy.replay.wall, Some(Duration::from_secs(1200)));
    let local = config.default_profile().expect("named local");
    assert_eq!(local.source, Some(Source::Path(root.join("repo"))));
    let tiers: Vec<_> = local.tiers.iter().map(|tier| (tier.name.as_str(), tier.memory, tier.quota)).collect();
    assert_eq!(tiers, [("small", 512 << 20, 3), ("big", 16 << 30, 1)], "in the order of the file");
    assert_eq!(local.tests[0].run, ["ruby", "-Ilib", "{file}"]);
    assert_eq!(local.tests[1..], built_in_rules());
    assert_eq!(local.target(), ("local", "warmhold"));
    let cluster = &config.profiles["cluster"];
    assert_eq!(cluster.target(), ("k3d-a", "warm"));
    assert_eq!(cluster.source, Some(Source::Url("https://git.example/a.git".into())));
    let control = config.control.expect("another");
    assert_eq!((control.url.as_str(), &control.member_token_file), ("http://100.64.0.7:31413", &token));
    assert_eq!(control.machine_token_files["m1"], token);
    assert_eq!(config.grants.lease, Grant::default());
}

#[test]
fn every_fault_is_reported_at_once_in_the_order_of_the_file() {
    let text = r#"
[daemon]
lisen = "127.0.0.1:1"
max-body = 5

[policy.leese]

[profile.local]
ttl = "10"
tiers.lite = { memory = "2GB", quota = 0 }

[[profile.local.test]]
match = "*.rb"
"#;
    assert_eq!(
        faults(text),
        [
            "3 daemon.lisen: is no key of this table | did you mean `listen`?",
            "4 daemon.max-body: is an integer | write a size from 64KiB to 1GiB with its unit, such as \"16MiB\"",
            "6 policy.leese: is no key of this table | did you mean `lease`?",
            "9 profile.local.ttl: `10` is no duration | write a duration from 1s to 1d with its unit, such as \"2m\"",
            "10 profile.local.tiers.lite.memory: `2GB` is no size | write a size from 16MiB to 16TiB with its unit, such as \"16MiB\"",
            "10 profile.local.tiers.lite.quota: 0 is out of bounds | write a whole number from 1 to 999",
            "12 profile.local.test[0].run: is missing | a rule is a `match` (glob) and a `run` (argv with {file})",
        ]
    );
}

#[test]
fn the_whole_error_reads_as_a_list() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("warmhold.toml");
    fs::write(&file, "[deamon]\n[policy.lease]\nmemory = \"1B\"\n").expect("written");
    let faults = Config::load(root.path()).expect_err("faults");
    assert_eq!(faults.code(), "bad-configuration");
    assert_eq!(
        faults.to_string(),
        format!(
            "{} has 2 faults\n  line 1: deamon: is no table of this file\n    did you mean `daemon`?\n  \
             line 3: policy.lease.memory: 1B is out of bounds\n    \
             write a size from 64KiB to 4GiB with its unit, such as \"16MiB\"",
            file.display()
        )
    );
}

#[test]
fn an_unknown_key_names_the_nearest_right_one() {
    for (text, help) in [
        ("[daemon]\nlistn = 1", "did you mean `listen`?"),
        ("[daemon]\nrequire_primary = true", "did you mean `require-primary`?"),
        ("[daemon]\nMachine = 'a'", "did you mean `machine`?"),
        ("[profile.local]\nlockfiles = []", "did you mean `lock-files`?"),
        ("[profile.local]\nidle = '1h'", "did you mean `idle-ttl`?"),
        ("[[profile.local.tests]]", "did you mean `test`?"),
        ("[policy]\nmanifests = {}", "did you mean `manifest`?"),
        ("profiles = {}", "did you mean `profile`?"),
        ("[grants.lease]\nverb = []", "did you mean `verbs`?"),
        ("[grants.lease]\nzzzzzz = []", "the keys here are: contexts, namespaces, verbs"),
        ("xyz = 1", "the keys here are: daemon, policy, profile, control, grants"),
    ] {
        assert!(fault(text).ends_with(&format!("| {help}")), "{text}: {}", fault(text));
    }
}

#[test]
fn a_text_that_is_no_toml_says_where() {
    let found = faults("[daemon]\nlisten = 127.0.0.1\nmachine = \"x\"\nmachine = \"y\"\n");
    assert!(found.iter().all(|fault| fault.contains("this is no TOML")), "{found:?}");
    assert!(found[0].starts_with("2 "), "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("4 ")), "both faults: {found:?}");
}

#[test]
fn each_value_is_judged() {
    let table = [
        ("daemon = 1", "1 daemon: is an integer | write a table"),
        (
            "[daemon]\nlisten = '0.0.0.0:1'",
            "2 daemon.listen: `0.0.0.0` may not be listened on: others could reach it, or it isn't written plainly | write 127.0.0.1, [::1] or an address of 100.64.0.0/10, a colon and a port",
        ),
        (
            "[daemon]\nlisten = 'localhost:1'",
            "2 daemon.listen: `localhost` may not be listened on: others could reach it, or it isn't written plainly | write 127.0.0.1, [::1] or an address of 100.64.0.0/10, a colon and a port",
        ),
        (
            "[daemon]\nlisten = '127.0.0.01:1'",
            "2 daemon.listen: `127.0.0.01` may not be listened on: others could reach it, or it isn't written plainly | write 127.0.0.1, [::1] or an address of 100.64.0.0/10, a colon and a port",
        ),
        (
            "[daemon]\nlisten = '  '",
            "2 daemon.listen: is blank | write an address and a port, such as \"127.0.0.1:31413\"",
        ),
        ("[daemon]\nrequire-primary = 'yes'", "2 daemon.require-primary: is a string | write true or false"),
        (
            "[daemon]\nprimary = 'none'\nrequire-primary = true",
            "- daemon.require-primary: asks for a known primary, and no primary document is configured | name the document with `primary`, or leave `require-primary` out",
        ),
        (
            "[daemon]\npods = 'pods'",
            "2 daemon.pods: lies inside the root, which nobody but the daemon may cross, so tests could not run there | name a folder outside of it, such as /r-pods",
        ),
        (
            "[daemon]\npod-path = '/bin:.'",
            "2 daemon.pod-path: holds a folder that isn't absolute | write absolute folders with colons between them",
        ),
        (
            "[daemon]\nmax-connections = 0",
            "2 daemon.max-connections: 0 is out of bounds | write a whole number from 1 to 65536",
        ),
        (
            "[daemon]\nmax-connections = -1",
            "2 daemon.max-connections: -1 is out of bounds | write a whole number from 1 to 65536",
        ),
        (
            "[policy.lease]\nfile = 'none.wasm'",
            "2 policy.lease.file: there is no file /r/none.wasm | correct the path, or leave `file` out for the built-in policy",
        ),
        (
            "[policy.lease]\nwatch = true",
            "- policy.lease.watch: there is no `file` to watch | name a `file`, or leave `watch` out",
        ),
        (
            "[policy.lease]\ndeadline = '2s'\nwall = '1s'",
            "3 policy.lease.wall: is shorter than `deadline`, which is a part of it | write a longer `wall` or a shorter `deadline`",
        ),
        ("[policy.lease]\nsettings = 1", "2 policy.lease.settings: is an integer | write a table that JSON can hold"),
        (
            "[policy.lease]\nsettings = { a = nan }",
            "2 policy.lease.settings: holds nan, which JSON has no number for | write a table that JSON can hold",
        ),
        (
            "[profile.Local]",
            "1 profile.Local: `Local` is no profile name | a profile's name is at most 32 of a-z, 0-9 and hyphen, no hyphen first or last",
        ),
        (
            "[profile.local]\nbackend = 'docker'",
            "2 profile.local.backend: `docker` is no backend | write \"local\" or \"kubectl\"",
        ),
        (
            "[profile.local]\nimage = 'x'",
            "2 profile.local.image: belongs to pods in a cluster, and this profile's are local | set backend = \"kubectl\", or leave it out",
        ),
        (
            "[profile.local]\nsource = 'nowhere'",
            "2 profile.local.source: /r/nowhere is no git repository | name the top folder of a git work tree, or a bare repository",
        ),
        (
            "[profile.local]\nsource = 'git@host:a'",
            "2 profile.local.source: local pods take their source from a repository of this machine | clone it, and name the clone's path",
        ),
        (
            "[profile.local]\nlock-files = ['../a']",
            "2 profile.local.lock-files: `../a` is no path inside the repository | write paths relative to the repository's top, without `.` or `..`",
        ),
        (
            "[profile.local]\nlock-files = ['a', 1]",
            "2 profile.local.lock-files: item 2 is no string | write an array of paths in the repository",
        ),
        (
            "[profile.local]\ninstall = 'npm ci'",
            "2 profile.local.install: is a string | write an argv such as [\"npm\", \"ci\"]",
        ),
        (
            "[profile.local]\ninstall = ['']",
            "2 profile.local.install: has a blank program | write an argv such as [\"npm\", \"ci\"]",
        ),
        (
            "[profile.local]\ntiers.a = {}",
            "2 profile.local.tiers.a.memory: is missing | write `a = { memory = \"2GiB\", quota = 2 }`",
        ),
        (
            "[profile.local]\ntiers.A = { memory = '1GiB' }",
            "2 profile.local.tiers.A: `A` is no tier name | a tier's name is at most 16 of a-z, 0-9 and hyphen, no hyphen first or last",
        ),
        (
            "[profile.local]\nstanding = 3",
            "2 profile.local.standing: 3 is out of bounds | write a whole number from 0 to 2",
        ),
        (
            "[profile.local]\nttl = '2m'",
            "2 profile.local.ttl: a lease must outlive the run that it covers, and `ttl` isn't longer than `transport-limit` | write a longer `ttl` or a shorter `transport-limit`",
        ),
        (
            "[profile.local]\nidle-ttl = '2d'",
            "2 profile.local.idle-ttl: 2d is out of bounds | write a duration from 1s to 1d with its unit, such as \"2m\"",
        ),
        (
            "[profile.local]\nhost-probe = 'http://example.com:80'",
            "2 profile.local.host-probe: `http://example.com:80` is no probe: the worker resolves no names | write http, an IP address and a port, such as \"http://10.0.0.1:8080/healthz\"",
        ),
        (
            "[profile.local]\nenv = { 1A = 'x' }",
            "2 profile.local.env.1A: `1A` is no variable's name | letters, digits and underscores, no digit first",
        ),
        (
            "[profile.local]\nenv = { WARM_KEY = 'x' }",
            "2 profile.local.env.WARM_KEY: begins with WARM_, which tells the worker who it is | choose another name",
        ),
        ("[profile.local]\nenv = { A = 1 }", "2 profile.local.env.A: is an integer | write a string"),
        ("[profile]\nlocal = 1", "2 profile.local: is an integer | write a table"),
        (
            "[profile.local]\ntest = [{ match = '*.x', run = ['x'] }]",
            "2 profile.local.test[0].run: nowhere holds {file}, so every file would run the same | write an argv such as [\"sh\", \"{file}\"]",
        ),
        (
            "[profile.local]\ntest = [{ match = '*.x', run = [] }]",
            "2 profile.local.test[0].run: is empty | write an argv such as [\"sh\", \"{file}\"]",
        ),
        (
            "[profile.local]\ntest = [1]",
            "2 profile.local.test[0]: is no table | write an array of tables, [[profile.local.test]]",
        ),
        (
            "[grants.replay]\ncontexts = ['local']\nnamespaces = ['warmhold']\nverbs = ['create-pod', 'get-node', 'get-pod', 'list-pods', 'patch-metadata', 'wait-ready']",
            "- profile.local: the replay policy has no grant for exec in context `local`, namespace `warmhold` | add to [grants.replay]: contexts = [\"local\"], namespaces = [\"warmhold\"], verbs = [\"create-pod\", \"exec\", \"get-node\", \"get-pod\", \"list-pods\", \"patch-metadata\", \"wait-ready\"]",
        ),
        (
            "[grants.lease]\nverbs = ['get-pods']",
            "2 grants.lease.verbs: `get-pods` is no verb | did you mean `get-pod`?",
        ),
        (
            "[control]\nmember-token-file = '/none'\nurl = 'http://a/b'",
            "2 control.member-token-file: /none can't be read: No such file or directory (os error 2) | write the token into that file, mode 0600",
        ),
    ];
    for (text, expected) in table {
        let found = faults(text);
        assert_eq!(found.first().map(String::as_str), Some(expected), "{text}");
    }
}

#[test]
fn a_glob_that_does_not_parse_is_told() {
    let found = fault("[profile.local]\ntest = [{ match = 'a[', run = ['x', '{file}'] }]");
    assert!(found.starts_with("2 profile.local.test[0].match: is no glob: "), "{found}");
}

#[test]
fn a_cluster_needs_its_names() {
    let found = faults("[profile.c]\nbackend = 'kubectl'\nsource-mirror = 'srv/../x'\n");
    let keys: Vec<_> = found.iter().map(|fault| fault.split(':').next().expect("a key")).collect();
    assert_eq!(
        keys,
        [
            "2 profile.c.context",
            "2 profile.c.namespace",
            "2 profile.c.node",
            "2 profile.c.image",
            "3 profile.c.source-mirror"
        ]
    );
}

#[test]
fn a_machine_that_could_never_be_primary_is_refused_unless_there_is_no_document() {
    let read = |text: &str, over: Overrides| parse(text, Path::new("/r"), &over, None);
    let found = read("[daemon]\nmachine = 'Build.07'", Overrides::default()).expect_err("refused");
    assert_eq!(
        (found[0].what.as_str(), found[0].help.as_str()),
        (
            "`Build.07` could never hold the primary document",
            "at most 32 of a-z, 0-9 and hyphen, no hyphen first, such as `build-07`; or set primary = \"none\""
        )
    );
    assert!(read("[daemon]\nmachine = 'Build.07'\nprimary = 'none'", Overrides::default()).is_ok());
    let over = Overrides { primary: Some(Primary::None), ..Overrides::default() };
    assert!(read("[daemon]\nmachine = 'Build.07'", over).is_ok(), "--no-primary counts");
    let over = Overrides { machine: Some("a b".into()), ..Overrides::default() };
    let found = read("", over).expect_err("refused");
    assert_eq!((found[0].key.as_str(), found[0].what.as_str()), ("--machine", "`a b` is no machine name"));
}

#[test]
fn the_kept_name_holds_until_another_is_configured() {
    let root = tempfile::tempdir().expect("a folder");
    machine::keep(root.path(), "first").expect("kept");
    let config = Config::load(root.path()).expect("read");
    assert_eq!((config.daemon.machine.as_str(), config.daemon.machine_chosen), ("first", false));
    assert_eq!(config.daemon.keep_machine(root.path()).expect("kept"), "first");
    let over = Overrides { machine: Some("second".into()), ..Overrides::default() };
    let config = Config::load_with(root.path(), &over).expect("read");
    assert_eq!((config.daemon.machine.as_str(), config.daemon.machine_chosen), ("second", true));
    assert_eq!(config.daemon.keep_machine(root.path()).expect("chosen"), "second");
    assert_eq!(machine::kept(root.path()).expect("readable").as_deref(), Some("first"));
}

#[test]
fn the_command_line_comes_before_the_file() {
    let over = Overrides {
        listen: Some("127.0.0.1:9".into()),
        machine: Some("m2".into()),
        primary: Some(Primary::File("/p.json".into())),
        require_primary: true,
        file: None,
    };
    let config =
        parse("[daemon]\nlisten = '127.0.0.1:8'\nmachine = 'm1'\nprimary = 'none'", Path::new("/r"), &over, None)
            .expect("read");
    assert_eq!((config.daemon.listen.port(), config.daemon.machine.as_str()), (9, "m2"));
    assert_eq!((config.daemon.primary, config.daemon.require_primary), (Primary::File("/p.json".into()), true));

    let over = Overrides { file: Some("/nowhere/warmhold.toml".into()), ..Overrides::default() };
    let faults = Config::load_with(Path::new("/r"), &over).expect_err("a named file must exist");
    assert!(faults.to_string().contains("No such file"), "{faults}");
}

#[test]
fn a_credential_must_be_absolute_private_and_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let with = |content: &str, mode: u32| {
        fs::write(&file, content).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode");
        read(&format!("[control]\nurl = 'http://127.0.0.1:1'\nmember-token-file = '{}'", file.display()))
    };
    let token = "0123456789abcdef".repeat(4);
    assert!(with(&token, 0o600).is_ok());
    assert!(with(&token, 0o400).is_ok());
    let what = |result: Result<Config, Vec<Fault>>| result.expect_err("refused")[0].to_string();
    let help = |result: Result<Config, Vec<Fault>>| result.expect_err("refused")[0].help.clone();
    assert!(what(with(&token, 0o640)).contains("has mode 0640"));
    assert_eq!(help(with(&token, 0o604)), format!("chmod 600 {}", file.display()));
    let wrong = what(with("secret-but-no-token", 0o600));
    assert!(wrong.contains("holds no token") && !wrong.contains("secret"), "{wrong}");
    assert!(what(read("[control]\nurl = 'http://a:1'\nmember-token-file = 'token'")).contains("`token` is relative"));
    let missing = read("[control]").expect_err("refused");
    assert_eq!(
        missing.iter().map(|fault| fault.key.as_str()).collect::<Vec<_>>(),
        ["control.url", "control.member-token-file"]
    );
}

#[test]
fn a_huge_file_is_not_read() {
    let root = tempfile::tempdir().expect("a folder");
    fs::write(root.path().join("warmhold.toml"), "#".repeat(1 << 20)).expect("written");
    assert!(Config::load(root.path()).is_ok(), "at the limit");
    fs::write(root.path().join("warmhold.toml"), "#".repeat((1 << 20) + 1)).expect("written");
    assert!(Config::load(root.path()).expect_err("refused").to_string().contains("larger than 1 MiB"));
    fs::write(root.path().join("warmhold.toml"), b"\xff").expect("written");
    assert!(Config::load(root.path()).is_err());
}

proptest::proptest! {
    #[test]
    fn no_text_is_too_strange(text in "([a-z.\\[\\]={}\"'0-9 \n-]|\\PC){0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn no_value_is_too_strange(
        key in proptest::sample::select(&[
            "daemon.listen", "daemon.pods", "policy.lease.settings", "profile.local", "profile.a.tiers", "profile.a.test",
            "profile.a.source", "profile.a.env", "control", "control.url", "grants.replay.verbs", "profile.a.standing",
        ][..]),
        value in proptest::sample::select(&[
            "1", "-9223372036854775808", "1.5", "inf", "true", "''", "'\u{0}'", "'a'", "[]", "[[]]", "[{}]", "{}", "{a={}}", "{''=1}",
            "1979-05-27", "'http://['", "'..'", "\"\\u0000\"",
        ][..]),
    ) {
        let _ = read(&format!("{key} = {value}"));
    }
}
