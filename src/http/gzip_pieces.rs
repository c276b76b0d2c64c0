//! A page with holes, compressed: the pieces between its holes are compressed once, and are joined for each visitor
//! with what fills the holes.
//!
//! Invariant: no byte of a filling goes through the compressor. A filling is copied into *stored* blocks of the
//! DEFLATE format (RFC 1951 §3.2.4), whose length says nothing about what they have in common with the page.
//! Were it compressed together with the page, a visitor's token and what an attacker can place in the page
//! would share a window, and an attacker could learn the token step by step from the length of the responses
//! (the BREACH attack).
//!
//! The format is gzip (RFC 1952) alone. Brotli carries state from one block to the next (the last distances, the
//! context of literals), so that pieces cannot be joined at the level of bytes.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use crate::holes::HolePlaces;

/// The header of RFC 1952 §2.3: deflate, no flags, no time, no level, an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// The last block of the format: an empty block with fixed Huffman codes.
const LAST_BLOCK: [u8; 2] = [0x03, 0x00];

/// The longest stored block. Its length is a 16-bit number.
const LONGEST_STORED: usize = u16::MAX as usize;

/// The compressed pieces of a body. There is one piece more than the body has holes.
#[derive(Debug)]
pub(crate) struct GzipPieces(Box<[Piece]>);

#[derive(Debug)]
struct Piece {
    /// Blocks that end at a byte boundary, and refer to no byte outside of the piece.
    blocks: Bytes,
    /// The checksum of the uncompressed piece, with its length.
    crc: Crc,
}

impl GzipPieces {
    /// Compresses the pieces of a body, whose places [`fit`](HolePlaces::fit). Returns `None` if they would be no
    /// smaller, or if the encoder fails.
    pub(crate) fn of(body: &[u8], holes: &HolePlaces, level: Compression) -> Option<Self> {
        let mut encoder = Compress::new(level, false);
        let ends = holes.places.iter().map(|place| place.at);
        let mut from = 0;
        let pieces = ends.chain([body.len()]).map(|end| {
            let plain = &body[from..end];
            from = end;
            let mut crc = Crc::new();
            crc.update(plain);
            let blocks = compressed(&mut encoder, plain)?;
            Ok::<_, io::Error>(Piece { blocks, crc })
        });
        let pieces: Box<[_]> = pieces.collect::<Result<_, _>>().ok()?;
        let length: usize = pieces.iter().map(|piece| piece.blocks.len()).sum();
        (length < body.len()).then_some(Self(pieces))
    }

    /// Returns the parts of the filled body in their order, in gzip. `fillings` yields the text for each place,
    /// already escaped.
    pub(crate) fn fill<F: AsRef<str>>(&self, fillings: impl Iterator<Item = F>) -> Vec<Bytes> {
        // Nothing follows the last piece.
        let mut fillings = fillings.take(self.0.len() - 1);
        let mut parts = Vec::with_capacity(2 * self.0.len() + 1);
        parts.push(Bytes::from_static(&HEADER));
        let mut crc = Crc::new();
        for piece in &self.0 {
            if !piece.blocks.is_empty() {
                parts.push(piece.blocks.clone());
                crc.combine(&piece.crc);
            }
            let filling = fillings.next();
            let filling = filling.as_ref().map_or("", AsRef::as_ref).as_bytes();
            if !filling.is_empty() {
                parts.push(stored(filling));
                let mut of_filling = Crc::new();
                of_filling.update(filling);
                crc.combine(&of_filling);
            }
        }
        let mut end = BytesMut::with_capacity(LAST_BLOCK.len() + 8);
        end.put_slice(&LAST_BLOCK);
        end.put_u32_le(crc.sum());
        end.put_u32_le(crc.amount());
        parts.push(end.freeze());
        parts
    }

    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let blocks: usize = self.0.iter().map(|piece| piece.blocks.len()).sum();
        size_of_val(&*self.0) + blocks
    }
}

/// Returns a piece as compressed blocks. The full flush makes them end at a byte boundary, and makes the
/// encoder forget the piece.
fn compressed(encoder: &mut Compress, plain: &[u8]) -> io::Result<Bytes> {
    if plain.is_empty() {
        return Ok(Bytes::new());
    }
    let begin = encoder.total_in();
    let mut blocks = Vec::with_capacity(plain.len() / 2 + 64);
    loop {
        let taken = usize::try_from(encoder.total_in() - begin).unwrap_or(plain.len());
        let status = encoder.compress_vec(&plain[taken..], &mut blocks, FlushCompress::Full)?;
        // The flush is complete if it has left space in the buffer.
        if blocks.len() < blocks.capacity() {
            return Ok(Bytes::from(blocks.into_boxed_slice()));
        }
        if status == Status::StreamEnd {
            return Err(io::Error::other("the encoder ended the stream in a piece"));
        }
        blocks.reserve(plain.len() / 2 + 64);
    }
}

/// Returns a filling as stored blocks.
fn stored(filling: &[u8]) -> Bytes {
    let blocks = filling.len().div_ceil(LONGEST_STORED);
    let mut stored = BytesMut::with_capacity(filling.len() + 5 * blocks);
    for block in filling.chunks(LONGEST_STORED) {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        // The header of a block (RFC 1951 §3.2.3): a bit that says that it is not the last one, two bits for the type "stored",
        // and padding up to the next byte.
        stored.put_u8(0);
        stored.put_u16_le(length);
        stored.put_u16_le(!length);
        stored.put_slice(block);
    }
    stored.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::holes::{Escape, Place};

    /// Reads with flate2's decoder, which compares the checksum and the length.
    fn decoded(parts: &[Bytes]) -> Vec<u8> {
        let body = parts.concat();
        let mut decoder = flate2::read::GzDecoder::new(&*body);
        let mut plain = Vec::new();
        decoder.read_to_end(&mut plain).expect("is whole");
        assert!(
            decoder.into_inner().is_empty(),
            "nothing stands behind the end"
        );
        plain
    }

    fn holes(at: impl IntoIterator<Item = usize>) -> HolePlaces {
        let place = |at| Place {
            at,
            name: 0,
            escape: Escape::Html,
        };
        HolePlaces {
            names: vec!["a".into()],
            places: at.into_iter().map(place).collect(),
        }
    }

    #[test]
    fn filling_is_no_part_of_what_is_compressed() {
        let page = "<input value=\"secret\">".repeat(40);
        let pieces = GzipPieces::of(page.as_bytes(), &holes([100]), Compression::new(9));
        let pieces = pieces.expect("is smaller");
        let length = |filling: &str| pieces.fill([filling].iter()).concat().len();
        // What a visitor sends takes the same number of bytes whether the page contains the same text or not. So nobody
        // can guess a secret of the page from lengths (BREACH).
        assert_eq!(length("value=\"secret\""), length("value=\"wrong!\""));
        let sent = pieces.fill(["value=\"secret\""].iter()).concat();
        let found = sent.windows(14).filter(|it| it == b"value=\"secret\"");
        assert_eq!(found.count(), 1);
    }

    #[test]
    fn page_that_compression_would_make_no_smaller_has_no_pieces() {
        let noise: Vec<u8> = (0..64)
            .flat_map(|_| uuid::Uuid::new_v4().into_bytes())
            .collect();
        for places in [holes([]), holes([500]), holes((0..1000).step_by(10))] {
            assert!(GzipPieces::of(&noise, &places, Compression::new(9)).is_none());
        }
        let text = "abc ".repeat(100);
        let everywhere = holes(0..=text.len());
        assert!(GzipPieces::of(text.as_bytes(), &everywhere, Compression::new(9)).is_none());
    }

    #[test]
    fn filling_may_be_longer_than_a_block() {
        let page = vec![b'x'; 200_000];
        let pieces = GzipPieces::of(&page, &holes([0, 7, 7, 200_000]), Compression::new(6));
        let pieces = pieces.expect("is smaller");
        for length in [0, 1, 65_535, 65_536, 400_000] {
            let filling = "y".repeat(length);
            let filled = decoded(&pieces.fill([&filling; 4].into_iter()));
            let filling = filling.as_bytes();
            let expected = [filling, &page[..7], filling, filling, &page[7..], filling];
            assert!(filled == expected.concat(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn joined_pieces_are_the_filled_page(
            pieces in proptest::collection::vec("[a-c<>]{0,400}|.{0,20}", 1..9),
            fillings in proptest::collection::vec(".{0,40}", 9),
            level in 1_u32..10,
        ) {
            let (mut body, mut filled, mut places) = (String::new(), String::new(), Vec::new());
            for (piece, filling) in pieces.iter().zip(&fillings) {
                body.push_str(piece);
                places.push(body.len());
                filled.push_str(piece);
                filled.push_str(filling);
            }
            // Long enough to be worth it.
            let rest = "and so on ".repeat(200);
            body.push_str(&rest);
            filled.push_str(&rest);
            let joined = GzipPieces::of(body.as_bytes(), &holes(places), Compression::new(level));
            let sent = joined.expect("is smaller").fill(fillings.iter());
            prop_assert_eq!(decoded(&sent), filled.into_bytes());
        }
    }
}
