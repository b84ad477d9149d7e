//! Whether an address can be reached, and a network in which none can.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// How long a host probe may take: it is meant to answer.
pub(crate) const HOST_PATIENCE: Duration = Duration::from_secs(5);
/// How long a production probe may take: a network policy that drops packets gives no other sign than silence.
pub(crate) const PROD_PATIENCE: Duration = Duration::from_secs(2);

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reached {
    /// An HTTP answer.
    Answered,
    /// A connection, but no HTTP answer.
    Connected,
    /// No connection, and why.
    No(String),
}

/// The address and the path of a probe: `http://IP:PORT/path`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(url: &str) -> Result<(SocketAddr, String), String> {
    let wrong = |why: &str| format!("the probe {url:?} {why}; it must be http://IP:PORT/path");
    let rest = url.strip_prefix("http://").ok_or_else(|| wrong("doesn't begin with http://"))?;
    let (host, path) =
        rest.split_once('/').map_or((rest, String::from("/")), |(host, path)| (host, format!("/{path}")));
    if path.contains(|c: char| c.is_ascii_control() || c == ' ') {
        return Err(wrong("has a space or a control character in its path"));
    }
    let address = host
        .parse::<SocketAddr>()
        .or_else(|_| format!("{host}:80").parse())
        .map_err(|_| wrong("names no IP address (names aren't resolved here)"))?;
    Ok((address, path))
}

/// Tries to reach it.
pub(crate) fn probe(url: &str, patience: Duration) -> Result<Reached, String> {
    let (address, path) = parse(url)?;
    let mut stream = match TcpStream::connect_timeout(&address, patience) {
        Ok(stream) => stream,
        Err(error) => return Ok(Reached::No(error.to_string())),
    };
    let ask = || -> io::Result<bool> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        // In one piece: a server may answer and close as soon as it has read the first.
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").as_bytes())?;
        let mut start = [0; 5];
        stream.read_exact(&mut start)?;
        Ok(&start == b"HTTP/")
    };
    let mut ask = ask;
    Ok(if matches!(ask(), Ok(true)) { Reached::Answered } else { Reached::Connected })
}

/// Proves that there is no way out: a route to a documentation address must be missing. Nothing is sent.
///
/// # Errors
/// What was found instead.
pub(crate) fn closed() -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(|error| format!("no socket: {error}"))?;
    match socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)) {
        Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => {}
        Err(error) => return Err(format!("a connection to nowhere fails in an unexpected way: {error}")),
        Ok(()) => return Err("the private network has a route to the outside".to_owned()),
    }
    // Without IPv6 there is no socket, which is as closed.
    let sixth = UdpSocket::bind("[::]:0").and_then(|socket| socket.connect("[2001:db8::1]:9"));
    if sixth.is_ok() { Err("the private network has an IPv6 route to the outside".to_owned()) } else { Ok(()) }
}

/// Brings up the loopback of a fresh network namespace: tests may talk to themselves.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // nlmsghdr: length, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, port; ifinfomsg: family, type, index of the
    // first interface, which is the loopback, IFF_UP and the mask that says so.
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(16_u16.to_ne_bytes());
    message.extend(5_u16.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(1_i32.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    rustix::net::sendto(&socket, &message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut reply = [0_u8; 256];
    rustix::net::recv(&socket, &mut reply[..], RecvFlags::empty())?;
    // nlmsgerr begins with a negative errno, 0 for success.
    let error = reply.get(16..20).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn probes_name_an_ip_address() {
        assert_eq!(parse("http://127.0.0.1:80/a/b").unwrap(), ("127.0.0.1:80".parse().unwrap(), "/a/b".to_owned()));
        assert_eq!(parse("http://10.0.0.1").unwrap(), ("10.0.0.1:80".parse().unwrap(), "/".to_owned()));
        assert_eq!(parse("http://[::1]:8080/").unwrap().0, "[::1]:8080".parse().unwrap());
        for bad in
            ["", "https://1.1.1.1/", "http://example.org/", "http://1.1.1.1:x/", "http://1.1.1.1:1/a b", "http://"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_probe_tells_an_answer_from_a_connection_from_nothing() {
        let patience = Duration::from_secs(5);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/health", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            for reply in ["HTTP/1.1 204 No Content\r\n\r\n", "SSH-2.0-x\r\n"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 16];
                stream.read_exact(&mut request).unwrap();
                assert_eq!(&request, b"GET /health HTTP");
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        assert_eq!(probe(&url, patience).unwrap(), Reached::Answered);
        assert_eq!(probe(&url, patience).unwrap(), Reached::Connected);
        server.join().unwrap();
        assert!(matches!(probe(&url, patience).unwrap(), Reached::No(_)));
    }
}
