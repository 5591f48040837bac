//! The vhost-user messages that the `vhost` crate decodes, applied to the [`Device`]. What is refused changes nothing, so
//! that the keeper need hold only what was accepted; but a queue that cannot start is stopped.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vhost::VhostUserMemoryRegionBase;

use crate::config::{protocol_features, within_config, Features, CONFIG_AGAIN, WRITEBACK_OFFSET};
use crate::device::{Device, Refused};
use crate::memory::{GuestAddress, GuestMemory, Mapping, Region, UserAddress};

/// Memory regions accepted by ADD_MEM_REG; more than any VMM's slots for hot-plugged memory need.
const MEM_SLOTS_MAX: usize = 128;

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Error::ReqHandlerError(io::Error::other(refused))
    }
}

const NOT_OFFERED: Error = Error::InvalidOperation("a message whose feature was not offered");

pub(crate) fn map(memory: &GuestMemory, region: &VhostUserMemoryRegion, file: File) -> Result<GuestMemory> {
    let refuse = |reason: String| Error::from(Refused(reason));
    let len = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
    let mapping = Mapping::of_file(&file, region.mmap_offset, len)
        .map_err(|e| refuse(format!("cannot map guest memory: {e}")))?;
    let region = Region {
        guest: GuestAddress(region.guest_phys_addr),
        user: UserAddress(region.user_addr),
        len: region.memory_size,
        mapping: Arc::new(mapping),
    };
    memory.with_region(region).map_err(|reason| refuse(reason.into()))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        self.begin();
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered().0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        Ok(Device::set_features(self, Features(features).without_layout())?)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(self.offered_protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !protocol_features().bits() != 0 {
            return Err(NOT_OFFERED);
        }
        self.protocol = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = GuestMemory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = map(&memory, region, file)?;
        }
        self.set_memory(memory)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEM_SLOTS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.memory().regions() >= MEM_SLOTS_MAX {
            return Err(Refused(format!("more than {MEM_SLOTS_MAX} memory regions")).into());
        }
        let memory = map(self.memory(), region, file)?;
        self.set_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self
            .memory()
            .without_region(
                GuestAddress(region.guest_phys_addr),
                UserAddress(region.user_addr),
                region.memory_size,
            )
            .ok_or(Error::InvalidParam)?;
        Ok(self.set_memory(memory)?)
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let max = u32::from(self.queue_size_max());
        if !num.is_power_of_two() || num > max {
            return Err(Refused(format!("a queue of {num}; it must be a power of two up to {max}")).into());
        }
        Ok(self.set_size(index, num as u16)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        Ok(self.set_addresses(index, descriptor, available, used)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(self.set_base(index, base)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.stop_queue(index)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ensure_own_inflight();
        Ok(self.set_kick(u32::from(index), fd.map(Into::into))?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        Ok(self.set_call(u32::from(index), fd.map(Into::into))?)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        Ok(self.set_err(u32::from(index), fd.map(Into::into))?)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        Ok(self.set_enabled(index, enable)?)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        if offset >= CONFIG_AGAIN {
            self.tell_config_again(offset);
        }
        let (space, offset) = (self.config(), within_config(offset));
        let start = (offset as usize).min(space.len());
        let mut bytes = vec![0; size as usize];
        let n = bytes.len().min(space.len() - start);
        bytes[..n].copy_from_slice(&space[start..start + n]);
        if (offset..offset.saturating_add(size)).contains(&WRITEBACK_OFFSET) {
            self.write_cache_was_read();
        }
        Ok(bytes)
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Ok(Device::set_config(self, within_config(offset), bytes)?)
    }

    fn set_backend_req_fd(&mut self, backend: Backend) {
        self.backend_channel = Some(backend);
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if usize::from(queues) > self.queues.len() {
            let reason = format!("no in-flight region for {queues} queues: there are {}", self.queues.len());
            return Err(Refused(reason).into());
        }
        let (file, len) = self.new_inflight(queues).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *region;
        Ok(self.set_inflight(file, mmap_offset, mmap_size, num_queues, queue_size)?)
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
