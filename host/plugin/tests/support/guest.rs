//! A manifest policy in the text of the component model, small enough to be written here: what it does in `render` is a
//! piece of WebAssembly that a test gives, with all of WASI that matters at hand.

/// Pieces of a guest.
#[derive(Clone, Copy)]
pub struct Guest {
    /// The body of `render`, after which it answers [`ANSWER`] from its memory. Locals `$a`, `$b` (i32), `$l` (i64).
    pub render: &'static str,
    /// The body of `check-settings`; it answers that all is well.
    pub check_settings: &'static str,
    /// The name that it gives itself; at most 16 bytes.
    pub name: &'static str,
    /// Pages of its memory.
    pub pages: u32,
}

impl Default for Guest {
    fn default() -> Self {
        Self { render: "", check_settings: "", name: "written", pages: 1 }
    }
}

/// Where `render` answers from: 32 bytes at this address, `{"pad":"......................."}`.
pub const ANSWER: u32 = 4096;

impl Guest {
    pub fn build(self) -> Vec<u8> {
        wat::parse_str(self.text()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn text(self) -> String {
        let Self { render, check_settings, name, pages } = self;
        let name_len = name.len();
        format!(
            r#"(component
  (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
  (alias export $error "error" (type $error-resource))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "output-stream" (type $out (sub resource)))
    (alias outer 1 $error-resource (type $e0))
    (export "error" (type $e (eq $e0)))
    (type $stream-error' (variant (case "last-operation-failed" (own $e)) (case "closed")))
    (export "stream-error" (type $stream-error (eq $stream-error')))
    (export "[method]output-stream.blocking-write-and-flush"
      (func (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))))
  (alias export $streams "output-stream" (type $out-resource))
  (import "wasi:cli/stderr@0.2.0" (instance $stderr
    (alias outer 1 $out-resource (type $o0))
    (export "output-stream" (type $o (eq $o0)))
    (export "get-stderr" (func (result (own $o))))))
  (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
  (import "wasi:random/random@0.2.0" (instance $random (export "get-random-u64" (func (result u64)))))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $mono (export "now" (func (result u64)))))
  (import "wasi:cli/environment@0.2.0" (instance $environment
    (export "get-environment" (func (result (list (tuple string string)))))))
  (import "wasi:filesystem/preopens@0.2.0" (instance $preopens))

  (core module $memory
    (memory (export "memory") {pages} 16384)
    (global $next (mut i32) (i32.const 8192))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (global.set $next (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
      (local.set $at (global.get $next))
      (global.set $next (i32.add (global.get $next) (local.get 3)))
      (local.get $at))
    (data (i32.const 16) "{name}")
    (data (i32.const 64) "1.0.0written in a test")
    (data (i32.const 128) "last words of the guest\n")
    (data (i32.const {ANSWER}) "{{\"pad\":\"......................\"}}"))
  (core instance $memory (instantiate $memory))

  (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core func $get-stderr (canon lower (func $stderr "get-stderr")))
  (core func $exit (canon lower (func $exit "exit")))
  (core func $random (canon lower (func $random "get-random-u64")))
  (core func $now (canon lower (func $mono "now")))
  (core func $env (canon lower (func $environment "get-environment")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))

  (core module $guest
    (import "host" "memory" (memory 1))
    (import "host" "write" (func $write (param i32 i32 i32 i32)))
    (import "host" "get-stderr" (func $get-stderr (result i32)))
    (import "host" "exit" (func $exit (param i32)))
    (import "host" "random" (func $random (result i64)))
    (import "host" "now" (func $now (result i64)))
    (import "host" "env" (func $env (param i32)))
    (table $table 4 funcref)
    (func $deeper (param i32) (result i32)
      (i32.add (call $deeper (i32.add (local.get 0) (i32.const 1))) (local.get 0)))
    ;; Writes a number as 16 letters at an address.
    (func $show (param $at i32) (param $value i64)
      (local $n i32)
      (loop $digits
        (i32.store8 (i32.add (local.get $at) (local.get $n))
          (i32.add (i32.const 97) (i32.wrap_i64 (i64.and (local.get $value) (i64.const 15)))))
        (local.set $value (i64.shr_u (local.get $value) (i64.const 4)))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $digits (i32.lt_u (local.get $n) (i32.const 16)))))
    (func (export "identify") (result i32)
      (i32.store (i32.const 256) (i32.const 16)) (i32.store (i32.const 260) (i32.const {name_len}))
      (i32.store (i32.const 264) (i32.const 64)) (i32.store (i32.const 268) (i32.const 5))
      (i32.store (i32.const 272) (i32.const 69)) (i32.store (i32.const 276) (i32.const 17))
      (i32.const 256))
    (func (export "check-settings") (param i32 i32) (result i32)
      (local $a i32) (local $b i32) (local $l i64)
      {check_settings}
      (i32.store8 (i32.const 320) (i32.const 0))
      (i32.const 320))
    (func (export "render") (param i32) (result i32)
      (local $a i32) (local $b i32) (local $l i64)
      {render}
      (i32.store8 (i32.const 384) (i32.const 0))
      (i32.store (i32.const 388) (i32.const {ANSWER}))
      (i32.store (i32.const 392) (i32.const 32))
      (i32.const 384))
    (func (export "verify") (param i32) (result i32)
      (i32.store8 (i32.const 448) (i32.const 0))
      (i32.store (i32.const 452) (i32.const 0))
      (i32.store (i32.const 456) (i32.const 0))
      (i32.const 448)))
  (core instance $guest (instantiate $guest (with "host" (instance
    (export "memory" (memory $memory "memory"))
    (export "write" (func $write)) (export "get-stderr" (func $get-stderr)) (export "exit" (func $exit))
    (export "random" (func $random)) (export "now" (func $now)) (export "env" (func $env))))))

  (type $identity (record (field "name" string) (field "version" string) (field "summary" string)))
  (func $identify (result $identity) (canon lift (core func $guest "identify") (memory (core memory $memory "memory"))))
  (func $check (param "settings" string) (result (result (error (list string))))
    (canon lift (core func $guest "check-settings") (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (component $about
    (type $i0 (record (field "name" string) (field "version" string) (field "summary" string)))
    (import "t" (type $i (eq $i0)))
    (import "identify" (func $f (result $i)))
    (import "check" (func $c (param "settings" string) (result (result (error (list string))))))
    (export $x "identity" (type $i))
    (export "identify" (func $f) (func (result $x)))
    (export "check-settings" (func $c)))
  (instance $about (instantiate $about
    (with "t" (type $identity)) (with "identify" (func $identify)) (with "check" (func $check))))
  (export "warmhold:policy/about@0.1.0" (instance $about))

  (type $key (record (field "context" string) (field "image-digest" string) (field "lock-hash" string) (field "architecture" string)))
  (type $spec (record (field "name" string) (field "namespace" string) (field "context" string)
    (field "worker-id" string) (field "image" string) (field "node" (option string)) (field "cut-sha" string)
    (field "key" $key) (field "memory-limit" (option string)) (field "host-probe-url" string)
    (field "prod-probe-url" string) (field "source-mirror" (option string)) (field "source" string)
    (field "install" (list string))))
  (type $diff (record (field "path" string) (field "want" string) (field "got" string)))
  (func $render (param "spec" $spec) (result (result string (error (list string))))
    (canon lift (core func $guest "render") (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func $verify (param "spec" $spec) (param "live" string) (result (result (list $diff) (error (list $diff))))
    (canon lift (core func $guest "verify") (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (component $manifest
    (type $k0 (record (field "context" string) (field "image-digest" string) (field "lock-hash" string) (field "architecture" string)))
    (import "k" (type $k (eq $k0)))
    (type $s0 (record (field "name" string) (field "namespace" string) (field "context" string)
    (field "worker-id" string) (field "image" string) (field "node" (option string)) (field "cut-sha" string)
    (field "key" $k) (field "memory-limit" (option string)) (field "host-probe-url" string)
    (field "prod-probe-url" string) (field "source-mirror" (option string)) (field "source" string)
    (field "install" (list string))))
    (import "s" (type $s (eq $s0)))
    (type $d0 (record (field "path" string) (field "want" string) (field "got" string)))
    (import "d" (type $d (eq $d0)))
    (import "render" (func $r (param "spec" $s) (result (result string (error (list string))))))
    (import "verify" (func $v (param "spec" $s) (param "live" string) (result (result (list $d) (error (list $d))))))
    (export $kx "worker-key" (type $k))
    (type $s1 (record (field "name" string) (field "namespace" string) (field "context" string)
    (field "worker-id" string) (field "image" string) (field "node" (option string)) (field "cut-sha" string)
    (field "key" $kx) (field "memory-limit" (option string)) (field "host-probe-url" string)
    (field "prod-probe-url" string) (field "source-mirror" (option string)) (field "source" string)
    (field "install" (list string))))
    (export $sx "pod-spec" (type $s1))
    (export $dx "difference" (type $d))
    (export "render" (func $r) (func (param "spec" $sx) (result (result string (error (list string))))))
    (export "verify" (func $v) (func (param "spec" $sx) (param "live" string) (result (result (list $dx) (error (list $dx)))))))
  (instance $manifest (instantiate $manifest
    (with "k" (type $key)) (with "s" (type $spec)) (with "d" (type $diff))
    (with "render" (func $render)) (with "verify" (func $verify))))
  (export "warmhold:policy/pod-manifest@0.1.0" (instance $manifest))
)"#
        )
    }
}
