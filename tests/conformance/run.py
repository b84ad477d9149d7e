#!/usr/bin/env python3
"""Replay control-plane HTTP scenarios against a server and compare what it answers.

  run.py --serve 'CMD' --token 'CMD' FILE.json...        replay and compare
  run.py ... --record OUT.json FILE.json...               fill in the expectations from a reference server

CMD templates: {root} state directory, {port} TCP port, {machine} this machine's name,
{lease} path of the primary-lease document (may not exist yet), {flags} scenario flags.
The serve command must run in the foreground; the token command prints a machine token on stdout.
`--serve` must accept an extra flag for scenarios that need a known primary: give it with --require-known.

A scenario is {"name", "primary": doc|null|"none", "requireKnown": bool, "steps": [...]}.
A step is one of
  {"do":"request","as":"member|admin|query|machine:NAME|none|raw:TOKEN","method","path","headers"?,"body"?|"raw"?,
   "save"?:{"var":"dotted.path"}, "expect":{"status","json"|"text","generation"}}
  {"do":"primary","doc":{...}|null}      write or remove the primary-lease document
  {"do":"sleep","ms":N} · {"do":"token","machine":NAME} (issue or re-issue) · {"do":"restart"}
`{{var}}` is replaced in path, headers and body. Expected JSON uses <uuid>, <now>, <int>, <owner:WHO>, {{var}}.
Every expected field must be there and equal. Fields that the server adds are allowed only where ALLOWED_EXTRA names them.
"""
import argparse, concurrent.futures, hashlib, json, os, re, shlex, shutil, signal, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

UUID = re.compile(r'^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$')
ALLOWED_EXTRA = {'podUid', 'idleTtlMs', 'message', 'requestId'}
MACHINE = 'm1'


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, args, scenario):
        self.args, self.scenario = args, scenario
        self.root = tempfile.mkdtemp(prefix='conformance-')
        os.chmod(self.root, 0o700)
        self.lease = os.path.join(self.root, 'primary-lease.json')
        self.machine_tokens, self.old_tokens, self.vars = {}, [], {}
        self.proc = None
        self.use_lease = scenario.get('primary', 'none') != 'none'
        if isinstance(scenario.get('primary'), dict):
            self.write_lease(scenario['primary'])
        try:
            self.start()
        except BaseException:  # nobody else would end what was started
            self.close()
            raise

    def write_lease(self, doc):
        if doc is None:
            if os.path.exists(self.lease):
                os.unlink(self.lease)
            return
        tmp = self.lease + '.tmp'
        with open(tmp, 'w') as f:
            f.write(doc if isinstance(doc, str) else json.dumps(doc))
        os.replace(tmp, self.lease)

    def start(self):
        self.port = free_port()
        template = self.args.serve if self.use_lease else (self.args.serve_without_lease or self.args.serve)
        cmd = template.format(root=self.root, port=self.port, machine=MACHINE, lease=self.lease)
        if self.scenario.get('requireKnown'):
            cmd += ' ' + self.args.require_known if not self.args.require_known.startswith('env:') else ''
        env = dict(os.environ)
        if self.scenario.get('requireKnown') and self.args.require_known.startswith('env:'):
            k, v = self.args.require_known[4:].split('=', 1)
            env[k] = v
        self.log = open(os.path.join(self.root, 'server.log'), 'ab')
        self.proc = subprocess.Popen(shlex.split(cmd), stdout=self.log, stderr=self.log, env=env, start_new_session=True)
        deadline = time.time() + 30
        while time.time() < deadline:
            try:
                with socket.create_connection(('127.0.0.1', self.port), 0.2):
                    break
            except OSError:
                if self.proc.poll() is not None:
                    raise RuntimeError('server exited: ' + open(self.log.name).read()[-2000:])
                time.sleep(0.02)
        else:
            raise RuntimeError('server did not listen')
        # Taking connections is not yet serving: whatever it answers, then it does.
        try:
            urllib.request.urlopen(f'http://127.0.0.1:{self.port}/v1/primary', timeout=30).close()
        except urllib.error.HTTPError:
            pass
        self.tokens = json.load(open(os.path.join(self.root, 'control', 'tokens.json')))

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.log.close()

    def close(self):
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def token(self, machine, fresh=False):
        if fresh or machine not in self.machine_tokens:
            if machine in self.machine_tokens:
                self.vars[f'old:{machine}'] = self.machine_tokens[machine]
            cmd = self.args.token.format(root=self.root, machine=machine)
            self.machine_tokens[machine] = subprocess.run(shlex.split(cmd), check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1].strip()
        return self.machine_tokens[machine]

    def bearer(self, who):
        if who == 'none':
            return None
        if who.startswith('machine:'):
            return self.token(who[8:])
        if who.startswith('raw:'):
            return self.fill(who[4:])
        return self.tokens[who]

    def owner_names(self):
        names = {hashlib.sha256(t.encode()).hexdigest(): f'<owner:{k}>' for k, t in self.tokens.items()}
        for m in list(self.machine_tokens) + ['m1', 'm2', 'm3']:
            names[hashlib.sha256(f'machine:{m}'.encode()).hexdigest()] = f'<owner:machine:{m}>'
        return names

    def fill(self, value):
        if isinstance(value, str):
            return re.sub(r'\{\{([^}]+)\}\}', lambda m: str(self.vars.get(m.group(1), m.group(0))), value)
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if isinstance(value, dict):
            return {k: self.fill(v) for k, v in value.items()}
        return value

    def request(self, step):
        headers = {k: self.fill(v) for k, v in step.get('headers', {}).items()}
        bearer = self.bearer(step.get('as', 'none'))
        if bearer is not None:
            headers['Authorization'] = f'Bearer {bearer}'
        data = None
        if 'raw' in step:
            data = step['raw'].encode()
        elif 'body' in step:
            data = json.dumps(self.fill(step['body'])).encode()
        if data is not None:
            headers.setdefault('Content-Type', 'application/json')
        req = urllib.request.Request(f'http://127.0.0.1:{self.port}{self.fill(step["path"])}', data=data, method=step['method'], headers=headers)
        try:
            with urllib.request.urlopen(req, timeout=20) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()


def dig(value, path):
    for part in path.split('.'):
        value = value[int(part)] if isinstance(value, list) else value.get(part) if isinstance(value, dict) else None
    return value


def normal(value, server, key=None, now=None):
    owners = server.owner_names()
    known = {v: '{{%s}}' % k for k, v in server.vars.items() if isinstance(v, str)}
    def go(v, key):
        if isinstance(v, dict):
            return {k: go(x, k) for k, x in v.items()}
        if isinstance(v, list):
            return [go(x, key) for x in v]
        if isinstance(v, str):
            if v in known:
                return known[v]
            if v in owners:
                return owners[v]
            if UUID.match(v):
                return '<uuid>'
            return v
        if isinstance(v, bool):
            return v
        if key in ('ageMs',):
            return '<int>'
        if isinstance(v, (int, float)) and key == 'observedAt' and abs(v - time.time() * 1000) < 120_000:
            return '<now>'
        if isinstance(v, float) and v.is_integer():
            return int(v)
        return v
    return go(value, key)


def diff(expected, got, path='$'):
    if isinstance(expected, dict) and isinstance(got, dict):
        out = []
        for k, v in expected.items():
            out += [f'{path}.{k}: missing'] if k not in got else diff(v, got[k], f'{path}.{k}')
        out += [f'{path}.{k}: not expected' for k in got if k not in expected and k not in ALLOWED_EXTRA]
        return out
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return [f'{path}: {len(got)} items, expected {len(expected)}']
        return [d for i, (a, b) in enumerate(zip(expected, got)) for d in diff(a, b, f'{path}[{i}]')]
    return [] if expected == got and type(expected) == type(got) else [f'{path}: {json.dumps(got)}, expected {json.dumps(expected)}']


def run(args, scenario, record):
    server, failures = Server(args, scenario), []
    try:
        for n, step in enumerate(scenario['steps']):
            kind = step.get('do', 'request')
            if kind == 'primary':
                server.write_lease(step['doc'])
            elif kind == 'sleep':
                time.sleep(step['ms'] / 1000)
            elif kind == 'token':
                server.token(step['machine'], fresh=True)
            elif kind == 'restart':
                server.stop()
                server.start()
            else:
                status, headers, raw = server.request(step)
                try:
                    value = json.loads(raw) if raw else None
                except ValueError:
                    value = {'<text>': raw.decode('utf8', 'replace')[:200]}
                for var, path in step.get('save', {}).items():
                    server.vars[var] = dig(value, path)
                got = {'status': status, 'generation': headers.get('x-primary-generation'), 'json': normal(value, server)}
                if record:
                    step['expect'] = got
                else:
                    bad = diff(step['expect'], got)
                    if bad:
                        failures.append((n, step, bad))
    finally:
        server.close()
    return failures


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--serve', required=True)
    p.add_argument('--serve-without-lease', help='serve command for scenarios with no primary lease configured')
    p.add_argument('--token', required=True)
    p.add_argument('--require-known', default='--require-primary')
    p.add_argument('--record')
    p.add_argument('--only', help='run scenarios whose name contains this')
    p.add_argument('--jobs', type=int, default=1, help='scenarios that run at once')
    p.add_argument('-v', action='store_true')
    p.add_argument('files', nargs='+')
    args = p.parse_args()
    total = failed = 0
    scenarios = [s for f in args.files for s in json.load(open(f))]
    scenarios = [s for s in scenarios if not args.only or args.only in s['name']]

    def outcome(scenario):
        try:
            return run(args, scenario, bool(args.record))
        except Exception as e:  # a server that dies fails its scenario, not the run
            return [(-1, {}, [f'{type(e).__name__}: {e}'])]

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(outcome, scenarios))
    for scenario, failures in zip(scenarios, outcomes):
        total += 1
        if failures:
            failed += 1
            print(f'FAIL {scenario["name"]}')
            for n, step, bad in failures[:20 if args.v else 4]:
                print(f'  step {n} {step.get("as", "")} {step.get("method", "")} {step.get("path", "")} {json.dumps(step.get("body", step.get("raw", "")))[:160]}')
                for line in bad[:6]:
                    print(f'    {line}')
    if args.record:
        json.dump(scenarios, open(args.record, 'w'), indent=1, sort_keys=True)
        print(f'recorded {len(scenarios)} scenarios')
    print(f'{total - failed} passed, {failed} failed')
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
