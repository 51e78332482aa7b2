"""A log of the code of 22 November is read as it was left, and goes on: its files, byte by byte.

It had one lane with four rows in two segments, of which the first was pruned.
"""

import zlib
from base64 import b85decode
from pathlib import Path

import pytest

from lbg_runtime.model.errors import LandingRowsPruned
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog, LaneExtent
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.verify import Walked, verify
from tests.pipeline.landing.landed import SHAPE, id_of, ids_of, rows

LANE = "queue=003/lane=m-1.1"
LOG_NOTE = b'{"group":"orders","hash_prefix":"hp","hash_count":8,"format":1}\n'
LANE_NOTE = b'{"queue":3,"member":"m","epoch":1,"order":1,"began_us":1,"host":"vm","format":1}\n'
# Compressed, in base 85.
IDS = (
    "c-r%Ea`$uzW?*1sU|={Eq2Iy)1x!$y5smK<(g{<-aJP{o$1y0#KirUk;Xe>m0L28rGF%Ki3~UUn3>-if$PgAFp8?3@0Fo?F5@NOpSdR!;j2)"
    "~>0BQyUD~MKrss#Z~AWkaE&rU6h&rAV}v%uv*_HTfi2Le0{5>OZLfK6p!W?_&4QUMGIz{4O1w2K9<CIN_5fLH>_zYxF%RKpG=Awj~-fE&m{X"
    "$2^)g(Sy_VJ-v2Z9t&0RsXL7Pa=dP48&>>rW&%m+F1sM4g&*2JwyEh{cHmxJtGj!#BksPZvrDC92lVSzyk~oHn8smp!TpZSb)qz3jYqM`8%L"
    "=0Gj(~6=w^87?O4XIH)qw"
)
DATA = (
    "c-p;IJx|*}7=9f>NFhaOizq{-UR6{wM1+qHNM%5(RCVaUkV*`dz`+-6#j(xV2C{Uf|A4UrL+4J6jQoHOj12t&-3z$yo$tcs2&!7CebM>8p1b"
    "FHKkSfYS#~iBPz7$|P=OMRLK#PBRuSibvob!5@(D13t&V37aq?pXAi;J~0C2IbU^}*O-{R+U{MVmZhLZ;~IQ}5+1DMITVIA8THkaBCWwBV}X"
    "Nq{HCdV9`#*~qWg%M?mN8>uNW0KH=gv&&FaKddkzRa?XYt9At`57Y57bMTD<f1{s@DBKf_$o}Ho)WHePpdKx)@W7o79lru7xrvFrPx=lvg|b"
    "H5x6N0$F+254;B#fJ;xNyySRqP?)jnZzy{)$E(LC!-_w-wnUdHNwq(<{0|)xCA&8%qV~*Q*X+XRrCT%~BUDBdEcA&@QFyr?Z1fH+GZ@z{%S0"
    "X2Zb4$w!w|jz<2D>R0{wm%hjrXz68`A)j$GZgQecrODro4Jg{ygqr#2re!f1<^T*BYY^^}RicJse_8TUUAPxprrW_7)2}lx=#BroD-07UcLj"
    "_s^vyw!4&g0ik$xk8FogkA!VvlP-;8dx!S@xJ1r9kxQ$<IS(XfRm*uycl%tY$n{Q+S0z`JwtO#kDVvK)kak-bF681nl8x+piHl<R5*ARMv{~"
    "3Ci+Uc<bHA-Me6+7`V&EDz!)rAOBX3*xAMr2ccn%vfwNu}(6W7L)i5P8r2L!8(#IDU8jLNp3Iv8)oT@-%+A4M%$f;Sox2VVP%^9(uH<amkar"
    "6;^&sZY7{J1k72c|7n6BjWo6%ZX8rz^8{%3Ihrne@WKFL(H}Q#!lgicxOd!k|D7WE@`pYLLXM;xQ<P*w?l@h7hyvUcA_MxGzqnHv7V1IOkx|"
    "8^$ix$^uaBCAoTe|^y%+e{=Kb;uWecC<2s*;oH_JB=@EyBEEpkf;Jq_-q08CZksIC$Ov^8QMR3AMQM^MnO9Jp0U`FcTzXkO|p63GG*fY4>%0"
    "_?Jdezvk_VwjPWUqK@2EJzCS7bje`*j1qZt!dw`&-6+k?dc{{>Z?qxeD87WB$e9J2B3m82e|&{+XfY+|Z+l6kpjI#LrlR_uVyD-&<nr-!)hG"
    "nsqz(lSZAuf1DTo691<*Vl<TlbzjH6!A@xP=thm@M#%X8I@)mX4rPzDJTGXrJipwC8XbLUaefh(?BDBNYknH&{}qq2U!2`ZTm"
)
INDEX = "c-r%Ea`$ocb75d)U|=w`$$Q1b00A#p83=+ZOWVaPP<8?rgl2^DnHjM29YQ+6^z~RR#+xEbIRU{K3d#"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lane = tmp_path / LANE
    lane.mkdir(parents=True)
    (tmp_path / "landing.json").write_bytes(LOG_NOTE)
    (lane / "lane.json").write_bytes(LANE_NOTE)
    for name, content in (("000000000000.ids", IDS), ("000000000002.arrow", DATA), ("000000000002.index", INDEX)):
        (lane / name).write_bytes(zlib.decompress(b85decode(content)))
    return tmp_path


def test_its_rows_are_read_and_those_pruned_are_told(root: Path) -> None:
    log = LandingLog(root)
    assert log.lanes() == {LANE: LaneExtent(2, 4)}
    assert ids_of(log.read_queue(3, {LANE: 2}, {LANE: 4})) == [id_of("k", 3), id_of("a", 1)]
    with pytest.raises(LandingRowsPruned):
        list(log.read_queue(3, {}, {LANE: 4}))


def test_nothing_of_it_is_damage(root: Path) -> None:
    walked = Walked()
    assert list(verify(LandingLog(root), walked)) == []
    assert walked.rows == 2


def test_a_copy_of_a_row_that_was_pruned_then_is_known_now(root: Path) -> None:
    assert claim_folder(root, SHAPE).id is None
    lane = LaneWriter(root, 3, "m", 2, clock_us=lambda: 10_000_000, is_synced=False)
    lane.append(rows([id_of("k", 2), id_of("k", 4)]))
    lane.close()
    assert ids_of(LandingLog(root).read_queue(3, {LANE: 4}, {LANE: 4, lane.name: 2})) == [id_of("k", 4)]


def test_it_is_pruned_on(root: Path) -> None:
    [gone] = prune(root, 20_000_000, clock_us=lambda: 10_000_000)
    assert (gone.lane, gone.first_row) == (LANE, 2)
    assert LandingLog(root).lanes() == {LANE: LaneExtent(4, 4)}
