# Mounts a node's data disk; formats it only if there is nothing at all on it. May be run
# again at any time. How it went is in the last line; whatever happens, FOLDER is there and
# belongs to OWNER, since the commands that follow write to it.
# Usage: mount.sh FOLDER OWNER SECONDS [DEVICE FILE | SERIAL NUMBER]...
set -u
folder=$1 owner=$2 seconds=$3
shift 3

finish() {
  chown "$owner" "$folder"
  echo "spotray-disk: $*"
  exit 0
}

found() {
  local one
  for one in "$@"; do
    case $one in
      /*) [ -b "$one" ] && readlink -f "$one" && return ;;
      *) lsblk -dnpo NAME,SERIAL | awk -v serial="$one" '$2 == serial { print $1; hit = 1 }
           END { exit !hit }' && return ;;
    esac
  done
  return 1
}

mkdir -p "$folder"
[ $# = 0 ] && finish "none"
until device=$(found "$@"); do # the kernel takes a moment to see what was attached
  [ "$SECONDS" -lt "$seconds" ] || finish "failed: no device $* after $seconds s"
  sleep 0.2
done

mounted=$(findmnt -nro SOURCE --mountpoint "$folder")
if [ -n "$mounted" ]; then
  [ "$(readlink -f "$mounted")" = "$device" ] || finish "failed: $mounted is at $folder"
  finish "mounted: $device was there"
fi
if [ -n "$(lsblk -nro MOUNTPOINT "$device" | tr -d '[:space:]')" ]; then
  finish "failed: $device is mounted elsewhere"
fi

kind=$(blkid -p -s TYPE -o value "$device")
case $? in
  0) what="with what was on it" ;;
  2) # the only answer that means: nothing on it
    mkfs.ext4 -q -m 0 "$device" || finish "failed: $device cannot be formatted"
    kind=ext4 what="formatted" ;;
  *) finish "failed: nobody can tell what is on $device; it is left alone" ;;
esac
[ -n "$kind" ] || finish "failed: $device has partitions; it is left alone"
if ! mount -o noatime "$device" "$folder"; then
  e2fsck -p "$device" # replays what the last node left half done
  mount -o noatime "$device" "$folder" || finish "failed: $device ($kind) cannot be mounted"
fi
finish "mounted: $device, $what"
