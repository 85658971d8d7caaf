#!/bin/bash
# Packages Muster for machines without a compiler (docs/operations.md): a tarball that runs in any folder, four Debian
# packages that install to /opt/muster, and SHA256SUMS.
#   tools/package.sh [OPTION]... [OUT, default dist] [-- BAZEL_OPTION...]
#     --tree FOLDER        make only the folder that the tarball holds, for images
#     --without-libtorch   leave LibTorch out: the folder's site/ comes from elsewhere
#     --programs FOLDER    programs that tools/install.sh made, instead of a build with --config=release
#     --version VERSION    default: that of common/version.h, with ~gitTIME.COMMIT where HEAD has no tag v(that)
#     --fast               compress little, for tests
# The same commit, programs and options give the same bytes: times are SOURCE_DATE_EPOCH, by default the commit's.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "package: $*" >&2; exit 1; }

out=dist tree='' libtorch=1 programs='' version='' level=12 bazel_options=(--config=release)
while [ $# -gt 0 ]; do
  case $1 in
    --tree) tree=$(realpath -m "$2"); shift 2 ;;
    --without-libtorch) libtorch=; shift ;;
    --programs) programs=$2; shift 2 ;;
    --version) version=$2; shift 2 ;;
    --fast) level=1; shift ;;
    --) shift; bazel_options=("$@"); break ;;
    -*) die "unknown option $1; the first lines of $0 list all" ;;
    *) out=$1; shift ;;
  esac
done
[ -z "$tree" ] || [ ! -e "$tree" ] || [ -f "$tree/share/doc/muster/VERSION" ] || { [ -d "$tree" ] && [ -z "$(ls -A "$tree")" ]; } ||
  die "--tree $tree is not empty and not of an earlier run: it would be removed"
[ -n "$tree" ] || [ -n "$libtorch" ] || die "--without-libtorch needs --tree: the packages have LibTorch in them"
for tool in readelf chrpath dpkg-deb dpkg-shlibdeps; do
  command -v $tool >/dev/null || die "no $tool here: run tools/setup.sh"
done

# --- Version and time
release=$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' common/version.h)
commit=$(git rev-parse --short=8 HEAD 2>/dev/null || true)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$([ -n "$commit" ] && git log -1 --format=%ct || stat -c %Y common/version.h)
fi
export SOURCE_DATE_EPOCH
if [ -z "$version" ]; then
  version=$release
  if [ -n "$commit" ] && [ "$(git tag --points-at HEAD --list "v$release")" = "" ]; then
    version+="~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$commit"
  fi
fi
dpkg --validate-version "$version" || die "--version must be a version of Debian's form: 0.1.0"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=${tree:-$work/muster}
rm -rf "$stage"
mkdir -p "$stage/bin" "$stage/share/muster/systemd" "$stage/share/doc/muster"

# --- Programs
names=(muster muster-coordinator muster-worker muster-step muster-exec muster-trainer)
if [ -n "$programs" ]; then
  for name in "${names[@]}"; do install -m 755 "$programs/$name" "$stage/bin/$name"; done
else
  tools/install.sh "$stage/bin" "${bazel_options[@]}"
fi
# A build that is not a release also searches the cache of LibTorch of the user who built it.
runpath=$(readelf -d "$stage/bin/muster-trainer" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
relative=$(tr : '\n' <<<"$runpath" | grep '^[$]ORIGIN/' | paste -sd:)
[ -n "$relative" ] || die "muster-trainer does not search for LibTorch beside itself: its RUNPATH is \"$runpath\""
[ "$relative" = "$runpath" ] || chrpath -r "$relative" "$stage/bin/muster-trainer" >/dev/null

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# --- Debian's libraries, which a release has inside
libraries=$(for name in "${names[@]}"; do needed "$stage/bin/$name"; done | LC_ALL=C sort -u |
  grep -vE '^(ld-linux-x86-64|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|torch.*|c10.*|cu.*|nv.*|nccl))\.so' | paste -sd' ' || true)
[ -z "$libraries" ] ||
  echo "package: warning: the programs are not linked statically: the tarball runs only on machines that have $libraries" >&2

# --- LibTorch: what the trainer loads, and what that loads
torch=${MUSTER_TORCH_CPU:-${MUSTER_CACHE:-$HOME/.cache/muster}/torch-cpu}
if [ -n "$libtorch" ]; then
  [ -f "$torch/torch/lib/libtorch.so" ] || die "no LibTorch in $torch: run tools/fetch_torch.sh"
  [ -d "$torch/licenses" ] || die "the LibTorch in $torch has no licenses beside it: run tools/fetch_torch.sh"
  site=$stage/site/torch/lib
  mkdir -p "$site"
  wanted=$(needed "$stage/bin/muster-trainer")
  while [ -n "$wanted" ]; do
    found=
    for library in $wanted; do
      [ -f "$torch/torch/lib/$library" ] && [ ! -e "$site/$library" ] || continue
      install -p -m 644 "$torch/torch/lib/$library" "$site/$library"
      found+=" $(needed "$site/$library" | tr '\n' ' ')"
    done
    wanted=${found# }
  done
  [ -f "$site/libtorch_cpu.so" ] || die "muster-trainer does not need libtorch_cpu.so: was it built with CUDA?"
fi

# --- What else belongs to an installation
sdk/install.sh "$stage"
/usr/bin/python3 sdk/python/make_wheel.py "$stage/share/muster/muster-$release-py3-none-any.whl"
mkdir -p "$stage/share/muster/examples"
install -m 644 examples/*.yaml "$stage/share/muster/examples"
install -m 644 deploy/systemd/* "$stage/share/muster/systemd"
mkdir -p "$stage/share/muster/completions"
for shell in bash zsh fish; do "$stage/bin/muster" completion $shell >"$stage/share/muster/completions/muster.$shell"; done

# --- The pages, and the files that they link to, in the folders of the checkout, so that the links work
doc=$stage/share/doc/muster
find docs -type f \( -name '*.md' -o -name '*.png' -o -name '*.svg' \) -exec install -D -m 644 {} "$doc/{}" \;
mapfile -t linked < <(grep -oh ']([.][.]/[^)#]*' docs/*.md | sed 's,](\.\./,,' | LC_ALL=C sort -u)
for path in "${linked[@]}"; do find "$path" -type f ! -name BUILD -exec install -D -m 644 {} "$doc/{}" \; ; done
mapfile -t linked < <(printf '%s\n' "${linked[@]}" | cut -d/ -f1 | LC_ALL=C sort -u)
sed -i 's,](\.\./\.\./docs/,](../../doc/muster/docs/,' "$stage/share/muster/systemd/README.md"

# --- Licenses: ours, those of Debian's libraries that a release has inside, that of the web page's charts, LibTorch's
install -m 644 LICENSE CHANGELOG.md "$doc"
mkdir -p "$doc/licenses"
for package in libgrpc++-dev libprotobuf-dev libabsl-dev libre2-dev libc-ares-dev libssl-dev zlib1g-dev libsqlite3-dev \
  libyaml-cpp-dev libpcre2-dev libutf8proc-dev libpng-dev libjpeg62-turbo-dev libspdlog-dev libfmt-dev \
  nlohmann-json3-dev libcli11-dev libboost1.81-dev libgloo-dev; do
  install -m 644 "/usr/share/doc/$package/copyright" "$doc/licenses/$package" || die "no license of $package here: run tools/setup.sh"
done
install -m 644 third_party/uplot/uplot-LICENSE "$doc/licenses/uplot"
[ -z "$libtorch" ] || (cd "$torch/licenses" && find . -type f -exec install -D -m 644 {} "$doc/licenses/libtorch/{}" \;)
echo "$version" >"$doc/VERSION"

# LibTorch keeps its times, so that it is the same layer of an image after each change of ours.
find "$stage" -path "$stage/site" -prune -o -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
[ -z "$libtorch" ] || find "$stage/site" -type d -exec touch -r "$site/libtorch_cpu.so" {} +
find "$stage" -type d -exec chmod 755 {} +
[ -z "$tree" ] || { echo "package: $tree is Muster $version" >&2; exit 0; }

# --- The tarball
mkdir -p "$out"
out=$(realpath "$out")
name=muster-$version-linux-x86_64
rm -f "$out"/muster*.tar.gz "$out"/muster*.deb "$out/SHA256SUMS"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
  --transform "s,^muster,$name," -cf - muster | gzip -n "-$((level < 6 ? level : 6))" >"$out/$name.tar.gz"

# --- Debian packages: parts of that folder below /opt/muster
# deb PACKAGE PATH...: paths in the folder; deploy/debian/PACKAGE has control, and conffiles and scripts where there are any
deb() {
  local package=$1 root=$work/$1 from=deploy/debian/$1 path
  shift
  mkdir -p "$root/DEBIAN" "$root/opt/muster" "$root/usr/bin" "$root/usr/share/doc/$package"
  for path in "$@"; do
    mkdir -p "$(dirname "$root/opt/muster/$path")"
    cp -a "$stage/$path" "$root/opt/muster/$path"
  done
  for path in "$root"/opt/muster/bin/*; do
    # Users type these; the other two are started by muster-worker.
    case ${path##*/} in muster | muster-coordinator | muster-worker) ln -s "/opt/muster/bin/${path##*/}" "$root/usr/bin/" ;; esac
  done
  rmdir --ignore-fail-on-non-empty "$root/usr/bin"
  {
    printf 'Muster %s\n\n' "$version"
    cat LICENSE
    (cd "$doc/licenses" && find . -type f | LC_ALL=C sort) | while read -r path; do
      case $package:$path in muster-trainer:*) ;; *:./libtorch/*) continue ;; esac
      printf '\n\n==== %s\n\n' "${path#./}"
      cat "$doc/licenses/$path"
    done
  } >"$root/usr/share/doc/$package/copyright"
  install_more_of "$package" "$root"
  for path in "$from"/*.sysusers; do [ -f "$path" ] && install -D -m 644 "$path" "$root/usr/lib/sysusers.d/$package.conf"; done
  for path in "$from"/*.env; do [ -f "$path" ] && install -D -m 644 "$path" "$root/etc/muster/${path##*/}"; done
  for path in postinst prerm postrm; do [ ! -f "$from/$path" ] || install -m 755 "$from/$path" "$root/DEBIAN/$path"; done
  (cd "$root" && find etc -type f -printf '/%p\n' 2>/dev/null | LC_ALL=C sort) >"$root/DEBIAN/conffiles" || true
  [ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
  (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"

  # The libraries that the programs load, with the versions that they need.
  mkdir -p "$work/shlibs/debian"
  echo "Source: muster" >"$work/shlibs/debian/control"
  local binaries shlibs
  mapfile -t binaries < <(find "$root/opt/muster" -type f \( -path '*/bin/*' -o -name '*.so*' \))
  shlibs=$(cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info -l"$stage/site/torch/lib" "${binaries[@]/#/-e}" 2>"$work/shlibs/log") ||
    { cat "$work/shlibs/log" >&2; die "dpkg-shlibdeps cannot tell what $package depends on"; }
  shlibs=${shlibs#shlibs:Depends=}
  sed -e "s/@VERSION@/$version/" -e "s/@LIBRARIES@/$shlibs/" -e "s/@KIB@/$(du -sk --apparent-size "$root" | cut -f1)/" \
    "$from/control" >"$root/DEBIAN/control"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  find "$root" -type d -exec chmod 755 {} +
  dpkg-deb --root-owner-group -Zzstd "-z$level" --build "$root" "$out/${package}_${version}_amd64.deb" >/dev/null
}

# What is not below /opt/muster.
install_more_of() {
  case $1 in
    muster-cli)
      install -D -m 644 "$stage/share/muster/completions/muster.bash" "$2/usr/share/bash-completion/completions/muster"
      install -D -m 644 "$stage/share/muster/completions/muster.zsh" "$2/usr/share/zsh/vendor-completions/_muster"
      install -D -m 644 "$stage/share/muster/completions/muster.fish" "$2/usr/share/fish/vendor_completions.d/muster.fish" ;;
    muster-coordinator | muster-worker) install -D -m 644 "deploy/systemd/$1.service" "$2/lib/systemd/system/$1.service" ;;
  esac
}

deb muster-cli bin/muster share/muster/examples "share/muster/muster-$release-py3-none-any.whl" \
  share/doc/muster/docs "${linked[@]/#/share/doc/muster/}"
deb muster-coordinator bin/muster-coordinator
deb muster-worker bin/muster-worker bin/muster-step bin/muster-exec share/muster/systemd/run-as-owner.conf
deb muster-trainer bin/muster-trainer site include lib
(cd "$out" && sha256sum ./*.tar.gz ./*.deb | sed 's,\./,,' >SHA256SUMS)
echo "package: $out has" >&2
(cd "$out" && du -h --apparent-size -- *) >&2
