//! Which file systems a ledger may lie on.
//!
//! Locks and shared memory of SQLite need one kernel that sees them all. On a network file system two machines can each
//! believe that they hold the lock, and a worker would be leased twice.

use rustix::io::Errno;
use std::io;
use std::path::Path;

/// The name of a file system of this type (`f_type` of statfs) that a ledger may not lie on; none for all others.
#[must_use]
pub fn refused(f_type: u64) -> Option<&'static str> {
    Some(match f_type {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x564c => "NCP",
        0x0102_1997 => "9p",
        // Whatever is behind it (sshfs, a shared folder of a virtual machine), this kernel can't vouch for its locks.
        0x6573_5546 => "FUSE",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0xaad7_aaea => "PanFS",
        0x786f_4256 => "a VirtualBox shared folder",
        0xbacb_acbc => "a VMware shared folder",
        0x7c7c_6673 => "a Parallels shared folder",
        _ => return None,
    })
}

/// The type of the file system that a path lies on, or would lie on once it is created.
pub(crate) fn type_of(path: &Path) -> io::Result<u64> {
    let mut at = path;
    loop {
        match rustix::fs::statfs(if at.as_os_str().is_empty() { Path::new(".") } else { at }) {
            // The field's width and sign differ by architecture; the magic numbers have 32 bits.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits are all there is")]
            Ok(found) => return Ok(u64::from(found.f_type as u32)),
            Err(Errno::NOENT) => match at.parent() {
                Some(parent) => at = parent,
                None => return Err(Errno::NOENT.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (f_type, name) in [
            (0x6969, Some("NFS")),
            (0x517b, Some("SMB")),
            (0xff53_4d42, Some("CIFS")),
            (0xfe53_4d42, Some("SMB2")),
            (0x0102_1997, Some("9p")),
            (0x6573_5546, Some("FUSE")),
            (0x00c3_6400, Some("Ceph")),
            (0x0bd0_0bd0, Some("Lustre")),
            (0x0116_1970, Some("GFS2")),
            (0x7461_636f, Some("OCFS2")),
            (0x4750_4653, Some("GPFS")),
            (0x1983_0326, Some("BeeGFS")),
            (0x5346_414f, Some("AFS")),
            (0xef53, None),      // ext2, ext3, ext4
            (0x5846_5342, None), // XFS
            (0x9123_683e, None), // btrfs
            (0x0102_1994, None), // tmpfs
            (0x794c_7630, None), // overlayfs
            (0x2fc1_2fc1, None), // ZFS
            (0xf2f5_2010, None), // F2FS
            (0, None),
        ] {
            assert_eq!(refused(f_type), name, "{f_type:#x}");
        }
    }

    #[test]
    fn asks_the_nearest_folder_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        let here = type_of(folder.path()).unwrap();
        assert_eq!(type_of(&folder.path().join("not/yet/there")).unwrap(), here);
        assert_eq!(type_of(Path::new("/proc/self/status")).unwrap(), 0x9fa0);
        assert!(type_of(Path::new("not-there-at-all")).is_ok());
    }
}
