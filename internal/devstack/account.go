package devstack

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// account is the operating system user that PostgreSQL runs as, since it refuses to run
// as root. It is nil when this process is not root: then everything runs as ourselves.
type account struct {
	name string
	uid  int
	gid  int
}

// accountFor returns the owner of an existing data folder, else (also for "") the user
// postgres, else nobody.
func accountFor(dataDir string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if uid, gid, ok := ownerOf(dataDir); ok && uid != 0 {
		name := strconv.Itoa(uid)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("look up user %s: %w", name, err)
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and this machine has no user postgres")
}

func ownerOf(path string) (uid, gid int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}

// attr makes a child run as the account.
func (a *account) attr() *syscall.SysProcAttr {
	if a == nil {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
}

// own gives a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give %s to user %s: %w", path, a.name, err)
	}
	return nil
}

// mkdir makes a folder that only the account may enter. It is no error when it exists.
func (a *account) mkdir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return a.own(path)
}

// writeFile writes a file that only the account may read.
func (a *account) writeFile(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return a.own(path)
}

// checkReach says which folder on the way to path, path included, the account cannot enter.
func (a *account) checkReach(path string) error {
	if a == nil {
		return nil
	}
	var folders []string
	for dir := path; ; dir = filepath.Dir(dir) {
		folders = append(folders, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	slices.Reverse(folders)
	for _, dir := range folders {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("look at folder: %w", err)
		}
		if !a.mayEnter(info) {
			return fmt.Errorf("user %s, as which PostgreSQL runs, may not enter %s (choose another folder, or run chmod o+x %s)", a.name, dir, dir)
		}
	}
	return nil
}

func (a *account) mayEnter(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	mode := info.Mode().Perm()
	switch {
	case int(stat.Uid) == a.uid:
		return mode&0o100 != 0
	case int(stat.Gid) == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
