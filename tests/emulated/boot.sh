#!/bin/bash
# Process 1 of an emulated machine: builds its file system, says so, then serves until its end.
#
#   boot.sh FOLDER HOSTNAME VISIBLE...
#
# FOLDER/etc holds files that stand in for those of /etc. All of this machine's folders are
# there, but for those that a machine has for itself. VISIBLE: folders to be seen all the same.
set -eu
folder=$1 name=$2
shift 2
mount --make-rprivate /
hostname "$name"
root=$folder/root
mkdir -p "$root"/{home,tmp,root,run,proc,dev,sys}
chmod 1777 "$root/tmp"
for entry in /*; do
    case $entry in
    /home | /tmp | /root | /run | /proc | /dev | /sys) continue ;;
    esac
    if [ -L "$entry" ]; then
        cp -P "$entry" "$root$entry"
    elif [ -d "$entry" ]; then
        mkdir -p "$root$entry"
        mount --rbind "$entry" "$root$entry"
    fi
done
# Its own devices, so that a disk is seen by the machine that has it.
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -p "$root"/dev/{disk/by-id,pts,shm}
for device in full null random tty urandom zero; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${number%%:*}" "$root/dev/${number##*:}"
done
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for file in "$folder"/etc/*; do
    mount --bind "$file" "$root/etc/${file##*/}"
done
for path in "$@"; do
    # Else it came with its parent.
    if [ ! -e "$root$path" ]; then
        mkdir -p "$root$path"
        mount --rbind "$path" "$root$path"
    fi
done
mkdir -p "$root/run/sshd"
ulimit -n "$(ulimit -Hn)"
exec chroot "$root" /bin/bash -c '
    # What a machine does when it is told to go: all processes get the signal, then the end.
    trap "kill -TERM -1 2>/dev/null; sleep 1; exit 0" TERM
    echo up
    exec >/dev/null
    if [ -e /run/sshd_config ]; then
        /usr/sbin/sshd -D -e -f /run/sshd_config 2>/run/sshd.log &
    fi
    sleep infinity &
    while true; do wait -n || true; done
'
